"""How goodput depends on the limits of the classes."""
