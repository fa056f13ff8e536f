"""Made-up samples for tests: settings of the record with numbers that somebody chose."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_jax.core.outcome import Outcome
from papers.record.claims import (
    AnyClaim,
    Published,
    PublishedClaim,
    parse_claims,
    read_published,
)
from papers.record.measures import SCALAR_NAMES
from papers.record.runs import SettingSample
from papers.strategy_evolution.record import RECORD

SEEDS = (42, 43, 44)
TAIL = "ttft_p99_ms[critical]"


def sample_of(
    name: str = "it05_best",
    seeds: Sequence[int] = SEEDS,
    outcomes: Sequence[Outcome] | None = None,
    **columns: Sequence[float],
) -> SettingSample:
    """Runs with these figures, 1 in all others; brackets are written as `__critical`."""
    ended = list(outcomes or [Outcome.COMPLETED] * len(seeds))
    values = np.ones((len(seeds), len(SCALAR_NAMES)))
    for key, column in columns.items():
        base, _, slo_class = key.partition("__")
        metric = f"{base}[{slo_class}]" if slo_class else base
        values[:, SCALAR_NAMES.index(metric)] = column
    values[[outcome != Outcome.COMPLETED for outcome in ended]] = np.nan
    codes = np.array(ended, np.int8)
    return SettingSample(RECORD.settings[name], SCALAR_NAMES, np.array(seeds), values, codes, 0)


def claim_of(published: str, of: str = TAIL, within: float = 0.0) -> PublishedClaim:
    """A claim about iteration 5 against the baseline."""
    read: Published = read_published(published)
    is_change = read.unit == "%" and of != "reject_rate"
    against = "it00_baseline" if is_change else None
    tolerance = within if read.is_range else (5.0 if read.unit == "%" else 0.1 * read.value)
    return PublishedClaim("5", "made up", of, read, "it05_best", against, within, tolerance, "")


def statement_of(condition: str) -> AnyClaim:
    """A statement with one condition about iteration 5."""
    text = f"""
- row: "5"
  title: made up
  at: it05_best
  claims:
    - {{statement: something, conditions: [{condition}]}}
"""
    (claim,) = parse_claims(text.strip(), "test", RECORD.settings)
    return claim
