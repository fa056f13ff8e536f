"""Reproductions of published figures: saved data in, one figure out, expected numbers beside it.

Nothing here is for use from Python: every result has a command, which `blis-jax papers` lists.
"""

__all__: list[str] = []
