"""A small cluster made by hand for one phase: every row is written by field, nothing has to run before."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.columns import PastTable, Row, RowTable
from blis_jax.core.types import LAST, EngineShape, never
from blis_jax.engine.loop import context_of, first_order, first_state, requests_of
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.engine.writing import no_writes
from blis_jax.policies import Policies
from blis_jax.tables.blocks import Blocks
from blis_jax.tables.context import Work
from blis_jax.tables.state import Instance, LaneRow, Past, Resident, State
from blis_jax.workload.table import pad_to
from tests.support.scenes import Prompt, table_of, workload_of

CLOCK = jnp.int32
NEVER = int(never(np.dtype("int32")))
SLOTS = 4
BLOCK = 16
PROMPTS = (Prompt(0, 40, 3, 1), Prompt(10, 32, 2, 2), Prompt(20, 100, 5, 3), Prompt(30, 16, 1))


def config(**changes: Any) -> ClusterConfig:
    """Two instances, steps of 1,000 µs and 1 µs for each prefill token, 5 µs from routing to the queue."""
    settings: dict[str, Any] = {
        "num_instances": 2,
        "alpha_coeffs": (5.0, 0.0, 0.0),
        "beta_coeffs": (1000.0, 1.0, 0.0),
        "total_kv_blocks": 20,
        "max_num_running_reqs": 3,
        "max_num_scheduled_tokens": 64,
    }
    return ClusterConfig(**(settings | changes))


class Made:
    """An engine's surroundings and its first state, whose rows a test then changes."""

    def __init__(
        self,
        cluster: ClusterConfig | None = None,
        prompts: Sequence[Prompt] = PROMPTS,
        policies: Policies | None = None,
        *,
        at_block_level: bool = False,
    ) -> None:
        """Times in 32 bits, and memory without eviction unless block level is asked for."""
        cluster = cluster or config()
        shape = EngineShape(
            num_instances=cluster.num_instances,
            num_slots=SLOTS,
            num_requests=len(prompts),
            num_nodes=0,
            path_depth=1,
            log_capacity=8,
        )
        if at_block_level:
            sizes = {"num_blocks": 24, "list_blocks": 12, "ring_size": 64, "eviction_capacity": 4}
            shape = dataclasses.replace(shape, **sizes, window=8)
        functions = mechanism(cluster, policies)
        numbers = jax.tree.map(jnp.asarray, params(cluster, policies=policies))
        table = pad_to(table_of(workload_of(prompts)), len(prompts), 1, 1)
        empty = np.full((len(prompts), 1), -1, np.int32)
        table = dataclasses.replace(table, path_nodes=empty)
        requests = requests_of(shape, functions, numbers, table, first_order(len(prompts)))
        self.state: State = first_state(shape, functions, numbers, requests)
        self.ctx = context_of(shape, functions, numbers, requests)

    def lane(self, **fields: int) -> None:
        """Change the lane."""
        row = _changed(self.state.lane.row, fields)
        self.state = dataclasses.replace(self.state, lane=LaneRow((row.numbers, row.times)))

    def instance(self, number: int, **fields: int) -> None:
        """Change an instance; `chains` are its step events."""
        chains = fields.pop("chains", ())
        state = self.state
        row = _changed(Instance(state.inst.numbers[:, number], state.inst.times[:, number]), fields)
        times = row.times
        for place, time in enumerate(chains):  # type: ignore[arg-type]
            times = times.at[int(Instance.time_columns.CHAIN) + place].set(time)
        self.state = dataclasses.replace(
            state,
            inst=RowTable(
                (
                    state.inst.numbers.at[:, number].set(row.numbers),
                    state.inst.times.at[:, number].set(times),
                )
            ),
        )

    def resident(self, number: int, slot: int, request: int, **fields: int) -> None:
        """Put a request into a slot of an instance; unless `order` is given it waits from `queued` on."""
        state, given = self.state, self.ctx.request(jnp.int32(request))
        values = {
            "request": request,
            "order": int(LAST),
            "finish": int(LAST),
            "alloc_offset": 0,
            "slo_class": given.slo_class,
            "input_len": given.input_len,
            "tenant": 0,
            "tie_rank": given.tie_rank,
            "queue_rank": given.queue_rank,
            "after_steps": -1,
            "oversized": 0,
            "expected_blocks": 0,
            "queued": NEVER,
            "arrival": self.ctx.requests.arrival[request],
        }
        row = Resident.make(CLOCK, **(values | fields))
        numbers, times = jnp.stack(row.numbers.entries), jnp.stack(row.times.entries)
        self.state = dataclasses.replace(
            state,
            slot=RowTable(
                (
                    state.slot.numbers.at[:, number, slot].set(numbers),
                    state.slot.times.at[:, number, slot].set(times),
                )
            ),
        )

    def computed(self, number: int, slot: int, tokens: int) -> None:
        """Tokens computed of the request in a slot, for memory at block level."""
        blocks = self.state[Blocks]
        table = blocks.computed.at[number, slot].set(tokens)
        self.state = self.state.having(dataclasses.replace(blocks, computed=table))

    def past(self, request: int, **fields: int) -> None:
        """Change what a request has been through."""
        row = _changed(Past(self.state.past.rows[request]), fields)
        rows, *beside = self.state.past.parts
        past = PastTable((rows.at[request].set(row.numbers), *beside))
        self.state = dataclasses.replace(self.state, past=past)

    def work(self, number: int) -> Work:
        """The instance in mid-step, as a scan step hands it to its phases."""
        return no_writes(self.ctx, self.state, jnp.int32(number)).work


def _changed(row: Any, fields: dict[str, int]) -> Any:
    return row.replace(**{name: jnp.asarray(value) for name, value in fields.items()})


def values(row: Row, *names: str) -> list[int]:
    """Some fields of a row as whole numbers."""
    return [int(jax.device_get(getattr(row, name))) for name in names]
