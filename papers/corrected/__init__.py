"""Both published records again without the defects of the reference: which conclusions need them."""
