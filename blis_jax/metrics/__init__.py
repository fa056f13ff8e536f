"""Figures of a run: BLIS's own (`reference`), metrics by name (`scalars`), summaries, and what is kept of a run.

Each figure is defined once (`metric`) and computed from a run's record on the host, or from the engine's tables inside
a compiled call (`compiled`, `lane`), where each run is a lane.
"""
