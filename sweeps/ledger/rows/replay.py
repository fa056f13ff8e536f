"""A row's runs again: whether its numbers still come out, and which do not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_jax.errors import ConfigError
from sweeps.ledger.book import Ledger
from sweeps.ledger.rows.result import measured_from_runs, runs_content
from sweeps.ledger.rows.trial import (
    BASELINE,
    REFERENCE,
    STRATEGY,
    Benches,
    arm_records,
    policy_seeds_of,
    run_hypothesis,
)
from sweeps.ledger.versions import versions
from sweeps.tracks.claims import CHANGED

NUMBERS = ("blis_jax", "jax", "numpy", "backend")  # what exact equality may depend on
ROUNDING = 1e-9  # relative; what another version or backend may change


@dataclass(frozen=True)
class Replayed:
    """How a repetition compares with the record."""

    num_figures: int
    differences: tuple[str, ...]  # one sentence each
    largest: float  # relative difference
    other_versions: tuple[str, ...]
    changed_arms: tuple[str, ...]  # whose strategy file means something else by now

    @property
    def is_good(self) -> bool:
        """Equal on the same versions; up to rounding on others."""
        if self.changed_arms:
            return False
        if self.other_versions:
            return self.largest <= ROUNDING
        return not self.differences


def replay(ledger: Ledger, name: str) -> Replayed:
    """Runs a row again from its recorded settings."""
    row = ledger.row(name)
    if row.result is None or not row.result.get("runs"):
        what = "no result yet" if row.result is None else f"no runs: {row.result['evidence']}"
        raise ConfigError(f"{name} has {what}; there is nothing to replay")
    figures = row.result["runs"][STRATEGY]["figures"]
    hypothesis = row.hypothesis.on(row.result.get("seeds", row.hypothesis.seeds))
    benches = Benches([metric for metric in figures if metric != CHANGED])
    runs = run_hypothesis(hypothesis, ledger.folder, benches, policy_seeds_of(row.result))
    again = runs_content(runs, measured_from_runs(runs))
    differences, count, largest = _differences(row.result["runs"], again)
    before, now = row.result["versions"], versions()
    other = tuple(
        f"{key} {before.get(key)} → {now.get(key)}"
        for key in NUMBERS
        if before.get(key) != now.get(key)
    )
    return Replayed(count, tuple(differences), largest, other, _changed_arms(ledger, name))


def _differences(
    recorded: Mapping[str, Any], again: Mapping[str, Any]
) -> tuple[list[str], int, float]:
    """What differs, how many figures were compared, and the largest relative difference."""
    found, count, largest = [], 0, 0.0
    for role, arm in recorded.items():
        if arm["outcomes"] != again[role]["outcomes"]:
            found.append(f"{role}: outcomes {again[role]['outcomes']} instead of {arm['outcomes']}")
            largest = float("inf")
        for metric, values in arm["figures"].items():
            now = again[role]["figures"].get(metric)
            count += len(values)
            if now == values:
                continue
            size = _relative(values, now)
            largest = max(largest, size)
            found.append(f"{role}: {metric} is {now} instead of {values}")
    return found, count, largest


def _relative(values: list[float | None], now: list[float | None] | None) -> float:
    largest = 0.0
    for one, other in zip(values, now or [None] * len(values), strict=True):
        if one is None or other is None:
            largest = largest if one is other else float("inf")
        elif one != other:
            largest = max(largest, abs(other - one) / max(abs(one), abs(other)))
    return largest


def _changed_arms(ledger: Ledger, name: str) -> tuple[str, ...]:
    """Arms whose text means other settings than were recorded."""
    hypothesis = ledger.row(name).hypothesis
    texts = {role: arm.text for role, arm in hypothesis.arms.items()}
    try:
        now = arm_records(texts[STRATEGY], texts[BASELINE], texts.get(REFERENCE), hypothesis.over)
    except ConfigError as error:
        return (str(error),)
    return tuple(
        f"{role} {texts[role]} has other settings by now"
        for role, arm in hypothesis.arms.items()
        if now[role].hash != arm.hash
    )
