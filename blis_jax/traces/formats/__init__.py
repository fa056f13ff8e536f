"""The trace formats, each a module or an object with the functions `matches`, `read` and `write`.

`..read.FORMATS` lists the formats, which import rows and options of traces, and nothing else of the simulator.
"""
