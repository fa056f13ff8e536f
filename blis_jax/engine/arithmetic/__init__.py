"""Arithmetic as the engine needs it: exact float64, whole microseconds, blocks, branches that are masks."""
