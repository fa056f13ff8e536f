"""What a function of Go runs on where it is read statement by statement: masks where Go has branches and loops."""
