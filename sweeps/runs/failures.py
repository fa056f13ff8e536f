"""What went wrong on which seeds, in words, and what can be done about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.core.outcome import WHOLE, Outcome
from sweeps.search.objectives import NO_FIGURE

_WHOLE_NAMES = tuple(outcome.name for outcome in WHOLE)
_WHAT_TO_DO = {
    Outcome.LIVELOCK.name: "BLIS itself would run for ever here; give more KV blocks, fewer requests a "
    "second, or another preemption",
    Outcome.REFERENCE_CRASH.name: "BLIS itself crashes here; leave the CPU KV tier out, give more KV "
    "blocks, or set corrected to true",
    Outcome.ITERATIONS_EXHAUSTED.name: "give fewer requests",
    Outcome.OPEN_TIE.name: "take another seed for this configuration",
    Outcome.CLOCK_OVERFLOW.name: "give fewer requests or a higher rate",
    Outcome.WORKLOAD_SHORT.name: "give fewer requests, or longer windows of the clients",
}
_OTHERWISE = "lower the load or give more memory; the limit is the simulator's"


@dataclass(frozen=True)
class Failure:
    """`code` is the first outcome among the seeds that failed; `by_code` has all of them."""

    code: str
    message: str
    seeds: tuple[int, ...]
    by_code: Mapping[str, tuple[int, ...]]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        by_code = {code: list(seeds) for code, seeds in self.by_code.items()}
        return {**vars(self), "seeds": list(self.seeds), "by_code": by_code}


def failure_of(seeds: Sequence[int], outcomes: Sequence[str]) -> Failure | None:
    """The failure of a configuration's runs, or None if all came to their end."""
    by_code: dict[str, tuple[int, ...]] = {}
    for seed, outcome in zip(seeds, outcomes, strict=True):
        if outcome not in _WHOLE_NAMES:
            by_code[outcome] = (*by_code.get(outcome, ()), seed)
    if not by_code:
        return None
    parts = [f"on {_seeds(which)} {_sentence(code)}" for code, which in by_code.items()]
    failed = tuple(seed for seed in seeds if any(seed in which for which in by_code.values()))
    return Failure(next(iter(by_code)), "; ".join(parts), failed, by_code)


def no_figure(seeds: Sequence[int], names: Sequence[str]) -> Failure:
    """Runs that came to their end without a value of a metric that is asked for."""
    message = (
        f"on {_seeds(seeds)} {', '.join(names)} cannot be computed, since no request of the class came "
        "far enough; ask for another metric, or admit more requests"
    )
    return Failure(NO_FIGURE, message, tuple(seeds), {NO_FIGURE: tuple(seeds)})


def _sentence(code: str) -> str:
    return f"{Outcome[code].sentence} ({code}): {_WHAT_TO_DO.get(code, _OTHERWISE)}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"
