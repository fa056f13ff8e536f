"""Figures of a run: BLIS's own (`reference`), one number by name (`scalars`), summaries, and the same inside a compiled
call (`on_device`).

Each definition stands once and serves the host and the device through `arrays` and `reductions`.
"""
