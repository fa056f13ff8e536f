"""Translate Go to policies in Python: `reader` reads a whole function, the other modules parts of the language."""
