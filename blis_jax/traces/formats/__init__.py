"""The formats of traces that are read and written, one module each, with `matches`, `read` and `write`.

`..read.FORMATS` names them; they import rows and options of traces, nothing else of the simulator.
"""
