"""Figures of a run: BLIS's own (`reference`), one number by name (`scalars`), summaries, and what is kept of a run.

Each figure is defined once (`metric`). A compiled call (`compiled`, `lane`) gives it the engine's tables, lane by lane,
where the host gives it a record.
"""
