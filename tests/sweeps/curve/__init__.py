"""The command that draws curves."""
