"""How often an answer names what is not so, where the truth is known."""
