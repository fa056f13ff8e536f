"""Reproductions of published figures: saved data in, one figure out, expected numbers beside it."""
