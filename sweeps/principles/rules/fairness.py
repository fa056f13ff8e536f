"""The catalogue's rules for every comparison: equal requests, equal horizon, equal duration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

from blis_jax.errors import ConfigError
from sweeps.principles.catalogue import Entry, PrincipleClaim

if TYPE_CHECKING:
    from sweeps.principles.experiments.lab import LabArm

PAIRS = ("gain_change", "change_share")  # compare within pairs, and then the pairs
COLUMNS = ("least_regret",)  # compare within every column


def check_fair(entry: Entry, arms: Mapping[str, LabArm]) -> None:
    """Refuses an entry that compares runs of unequal size.

    What is compared directly has the same number of requests and the same horizon; where the rate or
    the number of instances differs, and between pairs, arrivals last as long.
    """
    for claim in entry.claims:
        for group in _direct(claim):
            for one, other in combinations((arms[name] for name in group), 2):
                _demand(entry, one, other, _size(one) == _size(other), "requests or horizon")
                _demand(entry, one, other, _duration(one) == _duration(other), "duration")
        if claim.kind in PAIRS:
            first, second = arms[claim.of[0]], arms[claim.to[0]]
            _demand(entry, first, second, _duration(first) == _duration(second), "duration")


def _direct(claim: PrincipleClaim) -> list[Sequence[str]]:
    if claim.kind in PAIRS:
        return [claim.of, claim.to]
    return list(claim.of) if claim.kind in COLUMNS else [claim.arms()]


def _size(arm: LabArm) -> tuple[int, int]:
    return arm.spec.num_requests, arm.spec.horizon


def _duration(arm: LabArm) -> Any:
    """How long requests arrive, s."""
    if arm.spec.horizon:
        return arm.spec.horizon / 1e6
    return round(arm.spec.num_requests / (arm.spec.aggregate_rate or 1.0), 9)


def _demand(entry: Entry, one: LabArm, other: LabArm, is_equal: bool, what: str) -> None:
    if not is_equal:
        raise ConfigError(
            f"{entry.source}: {entry.id}: arms {one.name} and {other.name} are compared, but differ "
            f"in {what}; give both the same"
        )
