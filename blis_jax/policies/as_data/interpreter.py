"""Run a table of operations as a routing policy: one function for all tables, so one compiled engine.

The loop over the operations branches to one operation at a time, as long as all lanes of a call run the same table; so
different tables run one after the other, see `runs/programs.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from blis_jax.core.pytrees import pytree
from blis_jax.policies.as_data.operations import OPERATIONS, as_bits
from blis_jax.policies.contract import Policy

if TYPE_CHECKING:
    from jaxtyping import Array, Int

    from blis_jax.core.types import EngineShape
    from blis_jax.policies.contexts import GatewayContext

NUM_STATES = 8  # vectors that a program may keep
SNAPSHOTS = (
    *("effective_load", "queue_depth", "batch_size", "num_pending", "kv_utilization"),
    *("free_kv_blocks", "cache_hit_rate", "is_active", "role"),
)
REQUEST = ("slo_class", "input_len", "arrival_us", "tenant", "tie_rank", "queue_rank")
SCALARS = ("num_prompt_blocks", "prompt_key", "now_us", "picked", "has_session", "block_size")


class TableForm(NamedTuple):
    """The sizes and inputs on which a compiled interpreter depends, besides the number of instances.

    Attributes:
        num_operations: greatest number of operations in a table.
        num_registers: number of inputs, constants and results.
        num_constants: greatest number of constants.
        num_scorers: number of scorers whose scores are inputs.
        has_matches: whether the matches of the router's prefix index are an input.
    """

    num_operations: int
    num_registers: int
    num_constants: int
    num_scorers: int
    has_matches: bool

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of the inputs, in the order of their registers."""
        seen = (*SNAPSHOTS, *(("prefix_match_blocks",) if self.has_matches else ()))
        return (
            "place", "num_draws", "last_draw", "scores", "snapshots.num_rejected",
            *(f"snapshots.{name}" for name in seen), *(f"request.{name}" for name in REQUEST), *SCALARS,
            *(f"scorer_scores.{at}" for at in range(self.num_scorers)),
            *(f"scorer_shares.{at}" for at in range(self.num_scorers)),
            *(f"state.{at}" for at in range(NUM_STATES)),
        )  # fmt: skip


@dataclass(frozen=True)
class OperationTable:
    """A policy as a table of operations.

    Attributes:
        code: (operation, result register, operand registers) of each operation, as numbers.
        constants: bits of the constants, stored in the registers after the inputs.
        decision: register that holds the index of the chosen instance.
        states: registers that are kept for the next decision, at most `NUM_STATES`.
        start: bits of the kept state `[state][instance]` before the first decision.
    """

    code: tuple[tuple[int, int, int, int, int], ...]
    constants: tuple[int, ...]
    decision: int
    states: tuple[int, ...]
    start: tuple[tuple[int, ...], ...]


@pytree
class TableParams:
    """A table as arrays, padded to the sizes of its form."""

    code: Int[Array, "operation 5"]
    count: Int[Array, ""]  # operations that are there
    constants: Int[Array, "constant"]
    decision: Int[Array, ""]
    states: Int[Array, "state"]
    start: Int[Array, "state instance"]


@pytree
class TableState:
    """The state that a table keeps between decisions, as bits."""

    registers: Int[Array, "state instance"]


@dataclass(frozen=True)
class TablePolicy(Policy):
    """A routing policy as a table: its function is the interpreter of the table's form, its numbers are the table."""

    form: TableForm | None = None
    num_instances: int = 1
    table: OperationTable | None = None

    def values(self) -> Any:
        """Return the table as arrays; a table without operations if none is given."""
        form, table = self.form, self.table or OperationTable((), (), 0, (), ())
        assert form is not None
        code = np.zeros((form.num_operations, 5), np.int32)
        constants = np.zeros(form.num_constants, np.int64)
        start = np.zeros((NUM_STATES, self.num_instances), np.int64)
        states = np.full(NUM_STATES, form.inputs.index("state.0"), np.int32)
        states += np.arange(NUM_STATES, dtype=np.int32)  # unused states keep their value
        if table.code:
            code[: len(table.code)] = table.code
        constants[: len(table.constants)] = table.constants
        for at, row in enumerate(table.start):
            start[at] = row
        states[: len(table.states)] = table.states
        count, decision = np.int32(len(table.code)), np.int32(table.decision)
        return TableParams(code, count, constants, decision, states, start)  # type: ignore[arg-type]

    def function(self) -> Policy:
        """Return the interpreter of the table's form, which is what a compiled program depends on."""
        return dataclasses.replace(self, table=None)


@functools.cache
def interpreter(form: TableForm, num_instances: int) -> TablePolicy:
    """Return the policy that interprets tables of a form, without a table."""

    def start(params: TableParams, shape: EngineShape) -> TableState:
        return TableState(jnp.asarray(params.start))

    def decide(
        params: TableParams, state: TableState, context: GatewayContext
    ) -> tuple[jax.Array, TableState]:
        """Run the table on the signals in `context`; return the chosen instance and the table's next state."""
        first = _inputs(form, state, context)
        size = first.shape[1]
        constants = jnp.broadcast_to(params.constants[:, None], (form.num_constants, size))
        rest = form.num_registers - first.shape[0] - form.num_constants
        registers = jnp.concatenate([first, constants, jnp.zeros((rest, size), jnp.int64)])
        branches = [
            *(operation.run for operation in OPERATIONS.values()),
            *_of_draws(context.draws),
        ]

        def turn(at: jax.Array, registers: jax.Array) -> jax.Array:
            code = params.code[at]
            operands = [registers[code[place]] for place in (2, 3, 4)]
            made = lax.switch(code[0], branches, *operands)
            return lax.dynamic_update_index_in_dim(registers, made, code[1], 0)

        registers = lax.fori_loop(jnp.int32(0), params.count, turn, registers)
        chosen = registers[params.decision, 0].astype(jnp.int32)
        return chosen, TableState(registers[params.states])

    return TablePolicy(
        "routing",
        decide,
        TableParams,
        start,
        is_random=True,
        form=form,
        num_instances=num_instances,
    )


def _inputs(
    form: TableForm, state: TableState, context: GatewayContext
) -> Int[Array, "input instance"]:
    size = context.snapshots.is_active.shape[0]
    num_draws = context.draws.shape[0]
    known: dict[str, Any] = {
        "place": lax.iota(jnp.int64, size), "num_draws": jnp.int64(num_draws), "last_draw": jnp.int64(num_draws - 1),
    }  # fmt: skip
    rows = []
    for name in form.inputs:
        owner, _, part = name.rpartition(".")
        if owner == "state":
            rows.append(state.registers[int(part)])
        elif owner in ("scorer_scores", "scorer_shares"):
            rows.append(as_bits(getattr(context, owner)[int(part)]))
        elif name in known:
            rows.append(known[name])
        else:
            rows.append(as_bits(getattr(getattr(context, owner) if owner else context, part)))
    return jnp.stack([jnp.broadcast_to(row, (size,)) for row in rows])


def _of_draws(draws: jax.Array) -> list[Any]:
    """Return the functions of the operations on the router's stream, in the order of `OF_DRAWS`."""
    last = draws.shape[0] - 1

    def draw(place: jax.Array, *_: jax.Array) -> jax.Array:
        draw_at = draws[jnp.clip(place[0], 0, last)]
        return jnp.broadcast_to(draw_at.astype(jnp.int64), place.shape)

    def next_draw(place: jax.Array, most: jax.Array, _: jax.Array) -> jax.Array:
        def is_refused(at: jax.Array) -> jax.Array:
            return (at <= last) & (draws[jnp.minimum(at, last)].astype(jnp.int64) > most[0])

        accepted = lax.while_loop(is_refused, lambda at: at + 1, place[0])
        return jnp.broadcast_to(accepted, place.shape)

    return [draw, next_draw]
