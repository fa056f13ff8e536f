"""What is compiled: rows of runs, their requests given or drawn in the call, and their figures if asked for."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.backend import warn_if_late
from blis_jax.core.types import EngineShape, Mechanism, Params, pytree
from blis_jax.engine.loop import Raw, first_order, requests_of, run_row
from blis_jax.metrics.on_device.compiled import Compute, Drawn, Report, reports
from blis_jax.runs.lanes import Begun, LaneLoop

if TYPE_CHECKING:
    from blis_jax.workload.drawing.plan import PlanShape


@functools.lru_cache(maxsize=128)
def compiled(build: Callable[..., Callable[..., Any]], *statics: Any) -> Any:
    """Jitted `build(*statics)`: the one place where programs that run the engine are compiled."""
    warn_if_late()
    return jax.jit(build(*statics))


@pytree
class Ran:
    """What comes back of the rows of a call; None what was not asked for."""

    raw: Raw | None = None
    tables: Any = None  # of requests that were drawn in the call
    drawn: Drawn | None = None
    report: Report | None = None
    lane_steps: Any = None  # scan steps times lanes of the whole call


def rows_of(
    shape: EngineShape,
    mechanism: Mechanism,
    form: str,
    plan: PlanShape | None = None,
    compute: Compute | None = None,
    width: int | None = None,
) -> Callable[..., Ran]:
    """`(params[row], source[row], max_scan_steps, numbers) -> Ran[row]`, in `width` lanes or as many as there are rows.

    A source is `(table, order)`, or `(plan_params, seed)` with a plan. In lanes `compute` measures with `numbers`, and
    requests that are drawn and measured stay in the call; rows are measured by `reports_of`.
    """
    from blis_jax.workload.drawing.draw import draw

    def prepared(params: Params, source: Any) -> tuple[Any, Any, Any]:
        if plan is None:
            return requests_of(shape, mechanism, params, *source), None, None
        plan_params, seed = source
        table, is_short = draw(plan, plan_params, jax.random.key(seed))
        requests = requests_of(shape, mechanism, params, table, first_order(shape.num_requests))
        return requests, table, is_short

    def kept(raw: Raw, params: Any, tables: Any, is_short: Any, numbers: Any) -> Ran:
        drawn = None if plan is None else _drawn(tables, is_short)
        if compute is None:
            return Ran(raw, None if plan is None else tables, drawn)
        report = reports(shape, mechanism, compute, raw, tables, params, numbers)
        return Ran(raw if plan is None else None, None, drawn, report)

    def rows(params: Params, sources: Any, max_scan_steps: Any) -> Ran:
        """One row after the other, with real branches."""

        def one(row: Any) -> Any:
            requests, table, is_short = prepared(*row)
            return run_row(shape, mechanism, row[0], requests, max_scan_steps), table, is_short

        raw, tables, is_short = lax.map(one, (params, sources))
        return Ran(raw, tables, None if plan is None else _drawn(tables, is_short))

    def lanes(params: Params, sources: Any, max_scan_steps: Any, numbers: Any = None) -> Ran:
        """Many rows in one loop; a lane that is done takes the next one."""

        def begin(at: jax.Array) -> Begun:
            mine, source = jax.tree.map(lambda leaf: leaf[at], (params, sources))
            requests, table, is_short = jax.vmap(prepared)(mine, source)
            if plan is None and compute is not None:
                table = source[0]
            return Begun(mine, requests, (table, is_short))

        def keep(raw: Raw, done: Begun) -> Ran:
            tables, is_short = done.aside
            return kept(raw, done.params, tables, is_short, numbers)

        num_rows = params.cluster.num_instances.shape[0]
        loop = LaneLoop(shape, mechanism, begin, keep, num_rows, width or num_rows, max_scan_steps)
        ran, lane_steps = loop.run()
        return dataclasses.replace(ran, lane_steps=lane_steps)

    return lanes if form == "lanes" else rows


def _drawn(tables: Any, is_short: Any) -> Drawn:
    most_tokens = jnp.max(tables.input_len + tables.output_len, axis=-1)
    return Drawn(is_short, most_tokens, jnp.sum(tables.node_blocks, axis=-1))


def reports_of(shape: EngineShape, mechanism: Mechanism, compute: Compute) -> Callable[..., Report]:
    """`(raw[row], table[row], params[row], numbers) -> Report[row]` of rows that another program has made.

    Two programs compile side by side, and the one that makes the rows serves whole records, too.
    """

    def measure(raw: Any, tables: Any, params: Any, numbers: Any) -> Report:
        """The figures of all rows."""
        return reports(shape, mechanism, compute, raw, tables, params, numbers)

    return measure


def draws_of(plan: PlanShape) -> Callable[..., Any]:
    """`(plan_params, seed) -> (RequestTable, is_short)`, as the calls above draw it."""
    from blis_jax.workload.drawing.draw import draw

    return lambda plan_params, seed: draw(plan, plan_params, jax.random.key(seed))
