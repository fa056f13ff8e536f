"""Verdicts on a finished run that BLIS of August 2026 prints when asked: goodput, fitness, saturation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Verdicts:
    """What a run is said to be; nothing if nothing is asked for."""

    fields: dict[str, Any] = field(default_factory=dict)  # of the cluster's block
    lines: tuple[str, ...] = ()  # behind the blocks
    shows_one_class: bool = False  # figures by class are printed even if there is one class


NO_VERDICTS = Verdicts()
