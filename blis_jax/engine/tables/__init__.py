"""The engine's tables: typed rows for the phases, short vectors across a branch, and the writes that one scan step
makes.

What XLA's compiled form demands of tables is here and nowhere else. Nothing here knows what the rows mean.
"""
