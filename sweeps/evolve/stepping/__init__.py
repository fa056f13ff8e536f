"""The runtime of Go code that is translated statement by statement: branches and loops become masks."""
