"""The data of a run: typed rows, the state that a scan carries, and what one scan step changes in it.

Memory, the router's prefix index and the engine work on these; nothing here knows what they do. `Context` is what all
of them read. What XLA's compiled form demands of tables is here and nowhere else.
"""
