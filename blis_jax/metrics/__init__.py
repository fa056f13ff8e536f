"""Figures of a run: BLIS's own (`reference`), one number by name (`scalars`), summaries, and what is kept of a run.

Each figure is defined once (`metric`), for the host and for a compiled call (`on_device`), which give it their arrays.
"""
