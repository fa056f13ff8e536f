"""The reader: Go as policies of Python. `reader` reads a function whole, the others know parts of the language."""
