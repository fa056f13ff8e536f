"""The form for GPUs: many runs in one vectorised loop, where a lane that is done takes the next row.

Every phase of every lane is evaluated in each scan step, also of lanes that are done. With more rows than lanes these
wait until a share of all lanes is done; then what is kept of them goes to the output, and next rows begin in them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from blis_jax.core.branching import masked
from blis_jax.core.outcome import Outcome
from blis_jax.core.types import EngineShape, Mechanism, Params, pytree
from blis_jax.engine.context import Context
from blis_jax.engine.loop import CHUNK, Raw, first_state, raw_of, without_holes
from blis_jax.engine.scan_step import scan_step
from blis_jax.engine.state import Reg, Requests, State, with_paths
from blis_jax.engine.tables.joined import joined, parted
from blis_jax.policies.scorers.sums import shares_of

SHARE = 4  # one in so many lanes is done before next rows begin


class Begun(NamedTuple):
    """Rows before their first event, and what of them is to be at hand when they are done."""

    params: Params
    requests: Requests
    aside: Any  # what a compiled report asks for


@pytree
class Lanes:
    """All with an axis of lanes."""

    row: jax.Array  # int32; the number of rows in a lane that has none any more
    chunks: jax.Array  # int32: of scan steps, since the row began
    params: Params
    requests: Requests
    shares: jax.Array  # of the scorers' weights
    aside: Any  # see Begun
    state: State

    def is_open(self, max_scan_steps: Any) -> jax.Array:
        """Which lanes are not done with their row."""
        is_running: jax.Array = self.state.registers[:, Reg.IS_DONE] == 0
        return is_running & (self.chunks < max_scan_steps // CHUNK)


class LaneLoop:
    """One call: `num_rows` rows in `width` lanes."""

    def __init__(
        self,
        shape: EngineShape,
        mechanism: Mechanism,
        begin: Callable[[jax.Array], Begun],
        keep: Callable[[Raw, Begun], Any],
        num_rows: int,
        width: int,
        max_scan_steps: Any,
    ) -> None:
        """`begin` makes rows of their numbers, `keep` what is put out of rows that are done; both have an axis."""
        self.shape, self.mechanism, self.begin, self.keep = shape, mechanism, begin, keep
        self.num_rows, self.width = num_rows, min(width, num_rows)
        self.num_at_once = -(-self.width // SHARE)
        self.max_scan_steps = max_scan_steps

    def run(self) -> tuple[Any, jax.Array]:
        """What is kept `[row]`, and how many scan steps all lanes have made, those of waiting lanes included."""
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
        """Lanes at the first event of these rows."""
        shape, mechanism = self.shape, self.mechanism
        begun = self.begin(rows)
        requests = jax.vmap(with_paths)(begun.requests)
        states = jax.vmap(lambda p, r: first_state(shape, mechanism, p, r))(begun.params, requests)
        shares = jax.vmap(shares_of)(begun.params.policy.scorer_weights)
        zero = jnp.zeros_like(rows)
        return Lanes(rows, zero, begun.params, requests, shares, begun.aside, joined(states))

    def _chunk(self, lanes: Lanes) -> Lanes:
        """Some scan steps of every lane."""
        shape, mechanism = self.shape, self.mechanism

        def one(params: Params, requests: Requests, shares: jax.Array, state: State) -> State:
            return scan_step(Context(shape, mechanism, params, requests, masked, shares), state)

        def all_lanes(states: State, _: None) -> tuple[State, None]:
            return jax.vmap(one)(lanes.params, lanes.requests, lanes.shares, states), None

        chunks = lanes.chunks + lanes.is_open(self.max_scan_steps).astype(jnp.int32)
        state, _ = lax.scan(all_lanes, lanes.state, None, length=CHUNK)
        state = without_holes(shape, lanes.params, state)
        # a row that has made all its scan steps stays as it is while it waits
        is_cut = (chunks >= self.max_scan_steps // CHUNK) & (state.registers[:, Reg.IS_DONE] == 0)
        code = state.registers[:, Reg.OUTCOME]
        code = jnp.where(is_cut & (code == 0), jnp.int32(Outcome.ITERATIONS_EXHAUSTED), code)
        registers = state.registers.at[:, Reg.OUTCOME].set(code)
        state = dataclasses.replace(state, registers=registers)
        return dataclasses.replace(lanes, chunks=chunks, state=state)

    def _kept(self, lanes: Lanes) -> Any:
        raw = jax.vmap(raw_of)(parted(lanes.state), lanes.chunks)
        return self.keep(raw, Begun(lanes.params, lanes.requests, lanes.aside))

    def _is_waiting(self, lanes: Lanes) -> jax.Array:
        return (lanes.row < self.num_rows) & ~lanes.is_open(self.max_scan_steps)

    def _is_due(self, lanes: Lanes) -> jax.Array:
        """Whether enough lanes wait, or all that have a row."""
        num_waiting = jnp.sum(self._is_waiting(lanes), dtype=jnp.int32)
        num_held = jnp.sum(lanes.row < self.num_rows, dtype=jnp.int32)
        return (num_waiting >= self.num_at_once) | ((num_waiting > 0) & (num_waiting == num_held))

    def _refilled(self, carry: tuple[Lanes, Any, jax.Array]) -> tuple[Lanes, Any, jax.Array]:
        """Puts out what is kept of some waiting lanes, and begins the next rows in them."""
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
