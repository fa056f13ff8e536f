"""The scheduling record of strategy evolution, as a record to reproduce."""

from __future__ import annotations

from papers.record.definition import PaperRecord
from papers.record.measures import record_figures

RECORD = PaperRecord(
    package="papers.strategy_evolution",
    title="the scheduling record",
    seeds=(42, 43, 44),
    measurement=record_figures(),
    figure_example="rate_sweep",
)
