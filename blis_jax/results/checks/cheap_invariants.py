"""The invariants that are checked in every run, of a batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blis_jax.metrics.arrays import stacked
from blis_jax.results.checks.invariants import (
    RequestCheck,
    events_in_order,
    requests_conserved,
    steps_in_order,
)
from blis_jax.results.checks.kv_invariants import (
    blocks_released,
    preemptions_conserved,
    used_blocks_within_capacity,
)
from blis_jax.results.records import RunRecord

CHEAP_CHECKS: tuple[RequestCheck, ...] = (
    requests_conserved,
    events_in_order,
    steps_in_order,
    preemptions_conserved,
    used_blocks_within_capacity,
    blocks_released,
)
CHEAP_NAMES = tuple(check.__name__ for check in CHEAP_CHECKS)


class _Stacked:
    """The same fields of several runs' records, stacked when one is asked for."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def __getattr__(self, name: str) -> Any:
        parts = [getattr(part, name) for part in self._parts]
        column = None if parts[0] is None else stacked(*parts)  # runs of one kind
        setattr(self, name, column)
        return column


def cheap_violations(records: Sequence[RunRecord]) -> list[dict[str, int]]:
    """Per run, the violations of `CHEAP_CHECKS`: conservation, causality, order; for every batch."""
    requests: Any = _Stacked([record.requests for record in records])
    instances: Any = _Stacked([record.instances for record in records])
    counts = [check(requests, instances) for check in CHEAP_CHECKS]
    return [
        {name: int(values[row]) for name, values in zip(CHEAP_NAMES, counts, strict=True)}
        for row in range(len(records))
    ]
