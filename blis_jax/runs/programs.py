"""The compiled programs: they make rows, that is runs, of given or drawn requests, and measure them if asked to."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec

from blis_jax.backend import warn_if_late
from blis_jax.core.columns import masked
from blis_jax.core.outcome import Outcome
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape, Mechanism, Params
from blis_jax.engine.loop import (
    CHUNK,
    context_of,
    first_order,
    first_state,
    raw_of,
    requests_of,
    run_row,
    without_holes,
)
from blis_jax.engine.scan_step import scan_step
from blis_jax.metrics.compiled import Compute, Drawn, Report, reports
from blis_jax.policies.routing.by_score import shares_of
from blis_jax.runs.kept_programs import KeptProgram, Program, folder
from blis_jax.runs.options import num_devices
from blis_jax.tables.joined import joined, parted
from blis_jax.tables.raw import Raw
from blis_jax.tables.requests import Requests, with_paths
from blis_jax.tables.state import Reg, State
from blis_jax.workload.drawing.draw import draw

if TYPE_CHECKING:
    from blis_jax.metrics.lane import MeasureNumbers
    from blis_jax.workload.drawing.plan import PlanShape
    from blis_jax.workload.table import RequestTable

    # the requests where a call needs them, and what the host asks about them; else None
    Aside = tuple[Any, Any]


SHARE = 4  # one in so many lanes is done before next rows begin


class Begun(NamedTuple):
    """Rows before their first event, and the parts of them that are needed when they are done."""

    params: Params
    requests: Requests
    aside: Aside  # what a compiled report asks for


@pytree
class Lanes:
    """The state of all lanes; every array has a leading lane axis."""

    row: jax.Array  # int32; the number of rows in a lane that has none any more
    chunks: jax.Array  # int32: of scan steps, since the row began
    params: Params
    requests: Requests
    shares: jax.Array  # of the scorers' weights
    aside: Aside  # see Begun
    state: State

    def is_open(self, max_scan_steps: jax.Array) -> jax.Array:
        """Return which lanes have a row that is not done."""
        is_running: jax.Array = self.state.lane.numbers[:, Reg.IS_DONE] == 0
        return is_running & (self.chunks < max_scan_steps // CHUNK)


class LaneLoop:
    """Runs `num_rows` rows in `width` lanes, in one call."""

    def __init__(
        self,
        shape: EngineShape,
        mechanism: Mechanism,
        begin: Callable[[jax.Array], Begun],
        keep: Callable[[Raw, Begun], Any],
        num_rows: int,
        width: int,
        max_scan_steps: jax.Array,
    ) -> None:
        """Set up a loop: `begin` maps row indices to rows, `keep` finished rows to results; both are vectorised."""
        self.shape, self.mechanism, self.begin, self.keep = shape, mechanism, begin, keep
        self.num_rows, self.width = num_rows, min(width, num_rows)
        self.num_at_once = -(-self.width // SHARE)
        self.max_scan_steps = max_scan_steps

    def run(self) -> tuple[Any, jax.Array]:
        """Return the results of each run `[row]`, and the scan steps of all lanes, waiting lanes included."""
        first, turns = self._entered(jnp.arange(self.width, dtype=jnp.int32)), jnp.int32(0)
        if self.width == self.num_rows:
            lanes, turns = lax.while_loop(
                lambda carry: jnp.any(carry[0].is_open(self.max_scan_steps)),
                lambda carry: (self._chunk(carry[0]), carry[1] + 1),
                (first, turns),
            )
            return self._kept(lanes), turns.astype(jnp.int64) * CHUNK * self.width
        kept = jax.eval_shape(self._kept, first)
        out = jax.tree.map(lambda k: jnp.zeros((self.num_rows, *k.shape[1:]), k.dtype), kept)

        def turn(carry: tuple[Lanes, Any, jax.Array, jax.Array]) -> tuple[Any, ...]:
            lanes, out, next_row, turns = carry
            refilled = lax.while_loop(
                lambda now: self._is_due(now[0]),
                self._refilled,
                (self._chunk(lanes), out, next_row),
            )
            return *refilled, turns + 1

        start = first, out, jnp.int32(self.width), turns
        carry = lax.while_loop(lambda now: jnp.any(now[0].row < self.num_rows), turn, start)
        return carry[1], carry[3].astype(jnp.int64) * CHUNK * self.width

    def _entered(self, rows: jax.Array) -> Lanes:
        """Return lanes that are at the first event of these rows."""
        shape, mechanism = self.shape, self.mechanism
        begun = self.begin(rows)
        requests = jax.vmap(with_paths)(begun.requests)
        states = jax.vmap(lambda p, r: first_state(shape, mechanism, p, r))(begun.params, requests)
        shares = jax.vmap(shares_of)(begun.params.policy.scorer_weights)
        zero = jnp.zeros_like(rows)
        return Lanes(rows, zero, begun.params, requests, shares, begun.aside, joined(states))

    def _chunk(self, lanes: Lanes) -> Lanes:
        """Make CHUNK scan steps in every lane."""
        shape, mechanism = self.shape, self.mechanism

        def step_lane(params: Params, requests: Requests, shares: jax.Array, state: State) -> State:
            ctx = context_of(shape, mechanism, params, requests, masked, shares)
            return scan_step(ctx, state)

        def all_lanes(states: State, _: None) -> tuple[State, None]:
            return jax.vmap(step_lane)(lanes.params, lanes.requests, lanes.shares, states), None

        chunks = lanes.chunks + lanes.is_open(self.max_scan_steps).astype(jnp.int32)
        state, _ = lax.scan(all_lanes, lanes.state, None, length=CHUNK)
        state = without_holes(shape, lanes.params, state)
        # a row that has made all its scan steps stays as it is while it waits
        is_cut = (chunks >= self.max_scan_steps // CHUNK) & (
            state.lane.numbers[:, Reg.IS_DONE] == 0
        )
        code = state.lane.numbers[:, Reg.OUTCOME]
        code = jnp.where(is_cut & (code == 0), jnp.int32(Outcome.ITERATIONS_EXHAUSTED), code)
        registers = state.lane.numbers.at[:, Reg.OUTCOME].set(code)
        state = dataclasses.replace(state, lane=state.lane.with_numbers(registers))
        return dataclasses.replace(lanes, chunks=chunks, state=state)

    def _kept(self, lanes: Lanes) -> Any:
        raw = jax.vmap(functools.partial(raw_of, self.mechanism))(parted(lanes.state), lanes.chunks)
        return self.keep(raw, Begun(lanes.params, lanes.requests, lanes.aside))

    def _is_waiting(self, lanes: Lanes) -> jax.Array:
        return (lanes.row < self.num_rows) & ~lanes.is_open(self.max_scan_steps)

    def _is_due(self, lanes: Lanes) -> jax.Array:
        """Return whether enough lanes are done and wait for their next row, or all lanes that have a row."""
        num_waiting = jnp.sum(self._is_waiting(lanes), dtype=jnp.int32)
        num_held = jnp.sum(lanes.row < self.num_rows, dtype=jnp.int32)
        return (num_waiting >= self.num_at_once) | ((num_waiting > 0) & (num_waiting == num_held))

    def _refilled(self, carry: tuple[Lanes, Any, jax.Array]) -> tuple[Lanes, Any, jax.Array]:
        """Write the results of some waiting lanes to the output, and begin the next rows in them."""
        lanes, out, next_row = carry
        nobody = self.width  # beyond the last lane, where nothing is written
        (at,) = jnp.nonzero(self._is_waiting(lanes), size=self.num_at_once, fill_value=nobody)
        done = jax.tree.map(lambda leaf: leaf.at[at].get(mode="clip"), lanes)
        rows = jnp.where(at < nobody, done.row, jnp.int32(self.num_rows))
        out = jax.tree.map(
            lambda all_rows, kept: all_rows.at[rows].set(kept, mode="drop"), out, self._kept(done)
        )
        following = next_row + jnp.arange(self.num_at_once, dtype=jnp.int32)
        is_entered = (at < nobody) & (following < self.num_rows)
        entered = self._entered(jnp.minimum(following, self.num_rows - 1))
        into = jnp.where(is_entered, at, nobody)
        changed = jax.tree.map(lambda old, new: old.at[into].set(new, mode="drop"), lanes, entered)
        left = jnp.where(is_entered, nobody, at)
        row = changed.row.at[left].set(jnp.int32(self.num_rows), mode="drop")
        next_row = next_row + jnp.sum(is_entered, dtype=jnp.int32)
        return dataclasses.replace(changed, row=row), out, next_row


@functools.lru_cache(maxsize=128)
def compiled(build: Callable[..., Callable[..., Any]], *statics: Hashable) -> Program:
    """Return the program of `build(*statics)`; all programs that run the engine are compiled here."""
    warn_if_late()
    return (Program if folder() is None else KeptProgram)(build, statics)


@pytree
class Ran:
    """The results of the rows of a call; None for results that were not asked for."""

    raw: Raw | None = None
    tables: RequestTable | None = None  # of requests that were drawn in the call
    drawn: Drawn | None = None
    report: Report | None = None
    lane_steps: jax.Array | None = None  # scan steps times lanes of the whole call, or `[device]`


def rows_of(
    shape: EngineShape,
    mechanism: Mechanism,
    form: str,
    plan: PlanShape | None = None,
    compute: Compute | None = None,
    width: int | None = None,
) -> Callable[..., Ran]:
    """Return `(params[row], source[row], max_scan_steps, numbers) -> Ran[row]`, in `width` lanes or as many as rows.

    A source is `(table, order)`, or in lanes with a plan `(plan_params, seed)`. In form `lanes` the call also draws
    requests and measures runs, by `compute` with `numbers`, and the process's devices share the rows. In form `rows`
    requests are drawn by `drawn_of` and runs measured by `reports_of`: so the program that draws compiles once for all
    mechanisms, and in half of the time.
    """
    if form == "lanes":
        return _over_devices(_lanes_of(shape, mechanism, plan, compute, width))

    def rows(params: Params, sources: tuple[Any, Any], max_scan_steps: jax.Array) -> Ran:
        """Run one row after the other, with real branches."""

        def run_one_row(row: tuple[Params, tuple[Any, Any]]) -> Raw:
            requests = requests_of(shape, mechanism, row[0], *row[1])
            return run_row(shape, mechanism, row[0], requests, max_scan_steps)

        return Ran(lax.map(run_one_row, (params, sources)))

    return rows


def _lanes_of(
    shape: EngineShape,
    mechanism: Mechanism,
    plan: PlanShape | None,
    compute: Compute | None,
    width: int | None,
) -> Callable[..., Ran]:
    """Return a function that runs many rows in one loop; a lane that is done begins the next row."""

    def prepared(params: Params, source: tuple[Any, Any]) -> tuple[Requests, Any, Any]:
        """Return the requests of a row, their table, and counts of the draws for the host (None for given requests)."""
        drawn = None
        if plan:
            source, drawn = drawn_row(plan, *source)
        return requests_of(shape, mechanism, params, *source), source[0], drawn

    def lanes(
        params: Params,
        sources: tuple[Any, Any],
        max_scan_steps: jax.Array,
        numbers: MeasureNumbers | None = None,
    ) -> Ran:
        """Run the rows of one call; return the raw run of each, or its report if figures are asked for."""

        def begin(at: jax.Array) -> Begun:
            params_here, source = jax.tree.map(lambda leaf: leaf[at], (params, sources))
            requests, table, drawn = jax.vmap(prepared)(params_here, source)
            is_asked = plan is not None or compute is not None
            return Begun(params_here, requests, (table if is_asked else None, drawn))

        def keep(raw: Raw, done: Begun) -> Ran:
            tables, drawn = done.aside
            if compute is None:
                return Ran(raw, tables, drawn)
            assert numbers is not None  # who asks for figures says of which requests
            report = reports(shape, mechanism, compute, raw, tables, done.params, numbers)
            return Ran(None if plan else raw, None, drawn, report)

        num_rows = params.cluster.num_instances.shape[0]
        loop = LaneLoop(shape, mechanism, begin, keep, num_rows, width or num_rows, max_scan_steps)
        ran, lane_steps = loop.run()
        return dataclasses.replace(ran, lane_steps=lane_steps)

    return lanes


def _over_devices(lanes: Callable[..., Ran]) -> Callable[..., Ran]:
    """Return the function split over the process's devices, with equally many rows on each; unchanged for one device.

    No device waits for another before its own rows are done.
    """
    if num_devices() == 1:
        return lanes

    def on_each(*arguments: Any) -> Ran:
        """Run the rows of one device."""
        ran = lanes(*arguments)
        assert ran.lane_steps is not None
        return dataclasses.replace(ran, lane_steps=ran.lane_steps[None])

    def shared(
        params: Params, sources: Any, max_scan_steps: jax.Array, numbers: MeasureNumbers | None = None
    ) -> Ran:  # fmt: skip
        """Run the rows of one call on the largest number of devices that divides the number of rows."""
        arguments = params, sources, max_scan_steps, numbers
        num_rows = params.cluster.num_instances.shape[0]
        count = next(n for n in range(num_devices(), 0, -1) if num_rows % n == 0)
        if count == 1:
            return lanes(*arguments)
        devices = jax.local_devices()[:count]
        mesh = jax.make_mesh((count,), ("row",), (AxisType.Auto,), devices=devices)
        by_row, whole = PartitionSpec("row"), PartitionSpec()
        # check_vma: loops begin with numbers that are equal on all devices
        split = jax.shard_map(
            on_each, mesh=mesh, in_specs=(by_row, by_row, whole, whole), out_specs=by_row, check_vma=False
        )  # fmt: skip
        ran: Ran = split(*arguments)
        return ran

    return shared


def drawn_row(plan: PlanShape, plan_params: Any, seed: jax.Array) -> tuple[tuple[Any, Any], Drawn]:
    """Draw the requests of a run; return them with their order, and counts from which the host chooses table sizes."""
    table, is_short = draw(plan, plan_params, jax.random.key(seed))
    most_tokens = jnp.max(table.input_len + table.output_len)
    drawn = Drawn(is_short, most_tokens, jnp.sum(table.node_blocks))
    return (table, first_order(plan.num_requests)), drawn


def drawn_of(plan: PlanShape) -> Callable[..., Any]:
    """Return `(plan_params[row], seed[row]) -> (source[row], Drawn[row])`, for all mechanisms."""
    return lambda *rows: lax.map(lambda row: drawn_row(plan, *row), rows)


def reports_of(shape: EngineShape, mechanism: Mechanism, compute: Compute) -> Callable[..., Report]:
    """Return `(raw[row], table[row], params[row], numbers) -> Report[row]`, for runs that another program has made.

    Two programs compile in parallel, and the program that makes the runs also serves calls that return whole records.
    """

    def measure(raw: Raw, tables: RequestTable, params: Params, numbers: MeasureNumbers) -> Report:
        """Return the figures of all rows of a call."""
        return reports(shape, mechanism, compute, raw, tables, params, numbers)

    return measure
