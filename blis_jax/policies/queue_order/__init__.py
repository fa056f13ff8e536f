"""Orders of waiting requests that look beyond the queue: at caches, deadlines, and what the router handed over.

Ours; BLIS has none of them.
"""
