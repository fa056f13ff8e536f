"""The metrics in the engine's program: what comes back of a run is a report of a few hundred bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from blis_jax.core.types import EngineShape, Mechanism, pytree
from blis_jax.engine.state import Reg
from blis_jax.metrics.on_device.lane import (
    LaneRun,
    LaneSelection,
    MeasureNumbers,
    has_unfinished_decode,
)
from blis_jax.results.checks.cheap_invariants import CHEAP_CHECKS


class Compute(Protocol):
    """The figures of one lane. Programs are kept by it, so equal ones must be equal and hashable."""

    def __hash__(self) -> int:
        """Of what makes two of them equal."""

    @property
    def groups(self) -> Sequence[int | None]:
        """The SLO classes that are asked for by code; None for all requests."""

    @property
    def latencies(self) -> Sequence[str]:
        """The latencies that are asked for."""

    def __call__(self, selection: LaneSelection) -> Any:
        """A pytree of figures."""


@pytree
class Report:
    """How runs `[row]` ended, and their figures."""

    outcome: jax.Array  # int32[row]
    num_iterations: jax.Array
    num_open_ties: jax.Array
    violations: jax.Array  # int32[row, invariant], in the order of CHEAP_CHECKS and the clock's
    figures: Any


@pytree
class Drawn:
    """What the host asks about requests that were drawn in the call `[row]`."""

    is_short: jax.Array  # the generator drew too few
    most_tokens: jax.Array  # of a request, prompt and output
    num_node_blocks: jax.Array  # of all shared contents


def reports(
    shape: EngineShape,
    mechanism: Mechanism,
    compute: Compute,
    raw: Any,
    tables: Any,
    params: Any,
    numbers: MeasureNumbers,
) -> Report:
    """The reports of all rows; `raw`, `tables` and `params` have a leading axis."""

    def run_of(raw: Any, table: Any, params: Any) -> LaneRun:
        """One row as the metrics see it; the leading axis is gone."""
        return LaneRun(shape, mechanism, raw, table, params)

    def is_open(raw: Any, table: Any, params: Any) -> jax.Array:
        """bool scalar: decode of some request of the row ended early."""
        return has_unfinished_decode(run_of(raw, table, params))

    def one(raw: Any, table: Any, params: Any) -> Report:
        """The report of one row, every field without its leading axis."""
        run = run_of(raw, table, params)
        selection = LaneSelection(
            run, numbers, may_be_unfinished, compute.groups, compute.latencies
        )
        broken = [check(run.requests, run.instances) for check in CHEAP_CHECKS]
        return Report(
            outcome=run.outcome.astype(jnp.int32),
            num_iterations=raw.registers[Reg.CURSOR],
            num_open_ties=raw.registers[Reg.NUM_OPEN_TIES],
            violations=jnp.stack([*broken, raw.registers[Reg.INVARIANT_FAILURES]]).astype(
                jnp.int32
            ),
            figures=compute(selection),
        )

    # the definitions are shared with the host and promote as numpy does
    with jax.numpy_dtype_promotion("standard"):
        # one for all rows, so that it stays a branch
        may_be_unfinished = jnp.any(jax.vmap(is_open)(raw, tables, params))
        return jax.vmap(one)(raw, tables, params)
