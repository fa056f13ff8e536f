"""Figures of a run: BLIS's own (`reference`), one number by name (`scalars`), summaries, and the same inside a compiled
call (`on_device`).

Sums, maxima and quantiles stand once for the host and the device (`arrays`, `reductions`). What a figure is made of
them is written for each of the two, and tests hold the two equal.
"""
