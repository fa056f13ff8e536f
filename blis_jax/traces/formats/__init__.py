"""The formats of traces that are read and written, each with `matches`, `read` and `write`: a module, or a part of one.

`..read.FORMATS` names them; they import rows and options of traces, nothing else of the simulator.
"""
