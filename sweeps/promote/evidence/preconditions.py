"""What must agree between arms before their figures may be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sweeps.promote.evidence.hypothesis import BASELINE
from sweeps.promote.evidence.priority_mix import sheds_only
from sweeps.promote.evidence.runs import RunEvidence, SceneRuns

FEWEST_RUNS = 3  # per arm
MOST_FAILURES = 0.01  # of the requests, in any arm
ALIKE = 0.01  # relative difference of loads and lengths
FAILURES_ALIKE = 0.001  # difference of the shares of failures

Number = Callable[[RunEvidence], float | None]


@dataclass(frozen=True)
class Precondition:
    """One that does not hold."""

    problem: str
    reason: str


def agreement(arms: SceneRuns, subject: str, *, is_goodput: bool) -> Precondition | bool:
    """What keeps the arms from being compared; else whether something is shed in one of them.

    Args:
        arms: the runs by arm, the same names in each.
        subject: the arm that is compared with the baseline.
        is_goodput: whether the metric itself counts what is not served, so that failures are part of it.
    """
    first = next(iter(arms[BASELINE].values()), None)
    other = next(iter(arms[subject].values()), None)
    if first is None or other is None:
        return Precondition("too few runs", "the arms have no run in common")
    if first.stack() is not None and first.stack() == other.stack():
        return Precondition(
            "same stack",
            f"baseline and {subject} ran the same configuration, so nothing was tested",
        )
    is_shedding = False
    for name in arms[BASELINE]:
        runs = {arm: of_arm[name] for arm, of_arm in arms.items()}
        found = _failures(runs, name)
        if isinstance(found, Precondition) and not is_goodput:
            return found
        sheds = found is True
        is_shedding |= sheds
        broken = _load(runs, name) or (None if sheds else _lengths(runs, name))
        if broken is not None:
            return broken
    return is_shedding


def _failures(runs: Mapping[str, RunEvidence], name: str) -> Precondition | bool:
    """Whether requests were shed, by answers 429 alone; a precondition if they failed otherwise."""
    shares = {}
    for arm, run in runs.items():
        failures, total = run.failures(), run.total()
        if failures is None or not total:
            return Precondition(
                "failures unknown", f"{arm}, run {name}: the report does not count failures"
            )
        shares[arm] = failures / total
    spread = max(shares.values()) - min(shares.values())
    if max(shares.values()) <= MOST_FAILURES and spread <= FAILURES_ALIKE:
        return False
    failed = [run for arm, run in runs.items() if shares[arm] > 0]
    if all(run.by_class is not None and sheds_only(run.by_class) for run in failed):
        return True
    words = ", ".join(f"{share:.1%} in {arm}" for arm, share in shares.items())
    return Precondition(
        "failures",
        f"run {name}: failures {words}; latencies of different requests are not compared",
    )


def _load(runs: Mapping[str, RunEvidence], name: str) -> Precondition | None:
    offered = {arm: run.offered() for arm, run in runs.items()}
    first = offered[BASELINE]
    for arm, load in offered.items():
        known = (load is None) == (first is None)
        if not known or (load and first and (load[0] != first[0] or not alike(load[1], first[1]))):
            words = ", ".join(f"{one or 'unknown'} in {which}" for which, one in offered.items())
            return Precondition(
                "offered load", f"run {name}: offered load differs ({words}), see {arm}"
            )
    return _alike("requests", lambda run: run.total(), runs, name)


def _lengths(runs: Mapping[str, RunEvidence], name: str) -> Precondition | None:
    for which in ("input_length", "output_length"):

        def length(run: RunEvidence, which: str = which) -> float | None:
            return run.mean_length(which)

        broken = _alike(which, length, runs, name)
        if broken is not None:
            return broken
    return None


def _alike(
    what: str, number: Number, runs: Mapping[str, RunEvidence], name: str
) -> Precondition | None:
    first = number(runs[BASELINE])
    for arm, run in runs.items():
        value = number(run)
        if (value is None) != (first is None) or (
            value is not None and first is not None and not alike(value, first)
        ):
            return Precondition(
                what, f"run {name}: {what} is {first} in {BASELINE} and {value} in {arm}"
            )
    return None


def alike(one: float, other: float) -> bool:
    """Whether two loads or lengths are the same for a comparison."""
    return abs(one - other) <= ALIKE * max(abs(one), abs(other))
