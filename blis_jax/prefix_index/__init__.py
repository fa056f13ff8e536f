"""The router's prefix index: the blocks that the router believes each instance holds, and delayed updates of this
index.
"""
