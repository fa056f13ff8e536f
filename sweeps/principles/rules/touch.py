"""How a strategy can stand to a principle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sweeps.principles.rules.facts import Case

RELIES, AGAINST, NO_EFFECT = "relies on", "contradicts", "has no effect, by"


@dataclass(frozen=True)
class Touch:
    """A setting that a principle speaks of, with a sentence and what takes the setting away."""

    principle: str
    relation: str
    setting: str
    advice: str
    instead: Mapping[str, Any] = field(default_factory=dict)  # settings to measure against


Rule = Callable[[Case], Iterator[Touch]]
