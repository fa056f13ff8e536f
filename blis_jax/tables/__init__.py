"""The data of a run: typed rows, the state that a scan carries, and the rows that one scan step changes in it.

Memory, the router's prefix index and the engine work on these tables; nothing here depends on them. All of them read
`Context`. The demands of XLA's compiled form on tables are met here and nowhere else.
"""
