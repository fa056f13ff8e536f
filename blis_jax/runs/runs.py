"""One run on its way to a record: where its requests come from, its sizes, how often it was repaired."""

from __future__ import annotations

import copy
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.arrays import stacked
from blis_jax.core.outcome import WHOLE, Outcome
from blis_jax.core.types import EngineShape, Mechanism, Params
from blis_jax.engine.cluster_params import instance_names
from blis_jax.engine.loop import Order as EngineOrder
from blis_jax.engine.mechanism import has_priorities, mechanism, params
from blis_jax.policies.contract import Policies
from blis_jax.policies.seeds import policy_seed
from blis_jax.records.from_tables import run_record
from blis_jax.records.observation import Observation
from blis_jax.records.record import RunRecord
from blis_jax.records.ties import TieOrder, correct
from blis_jax.runs.demand import LONG_TABLE, Sizes, demand_of_table, first_sizes, grown
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled, drawn_of
from blis_jax.runs.stretches import LongRun, has_end, run_to_horizon
from blis_jax.tables.journeys import Orders
from blis_jax.tables.raw import Regrets
from blis_jax.workload.drawing.plan import DrawPlan, PlanShape, compile_plan
from blis_jax.workload.table import NEVER_US, RequestTable, pad_to

if TYPE_CHECKING:
    from jaxtyping import Int

    from blis_jax.workload.spec_parts import WorkloadSpec


# a run that stops where BLIS does, if its ties came in BLIS's order up to there
_ORDERED = (*WHOLE, Outcome.REFERENCE_CRASH, Outcome.LIVELOCK)
_RECORDS_FULL = (Outcome.LOG_FULL, Outcome.EVICTIONS_FULL)
# repairs after which a run under pressure with too many records is made in stretches
MOST_GROWTHS = 2
Inputs = tuple[Params, RequestTable, EngineOrder]


class Run(ABC):
    """One run to make, and to make again: with larger sizes where it did not fit, its ties in another order.

    What cannot be repaired stays in the record's `outcome`.
    """

    most_repairs: ClassVar[int]
    has_deadlines = False  # whether some requests are given up when their time is up
    is_too_long = False  # to be made in stretches: it has more records than these keep
    changing: ClassVar[tuple[str, ...]] = ("sizes", "repairs", "is_too_long")  # from call to call
    place: tuple[int, int] = (0, 0)  # of a point and a seed, by which a caller knows the run

    def __init__(
        self,
        config: ClusterConfig,
        policy_seed: int,
        policies: Policies | None,
        functions: Mechanism,
        sizes: Sizes,
    ) -> None:
        """Before the first time; `policies` take the place of those that the configuration names."""
        self.config, self.policy_seed, self.policies = config, policy_seed, policies
        self.functions, self.sizes, self.repairs = functions, sizes, 0

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Return what the run's program depends on besides sizes."""

    @property
    @abstractmethod
    def plan(self) -> PlanShape | None:
        """Return how the requests are drawn inside the call, or None if they are given."""

    @abstractmethod
    def source(self, shape: EngineShape) -> tuple[Any, Any]:
        """Return what the requests come from, in the form that `programs.rows_of` takes."""

    @abstractmethod
    def inputs(self, shape: EngineShape) -> Inputs:
        """Return numbers, requests and order on the host."""

    @abstractmethod
    def filler(self) -> Run:
        """Return a run without requests, which fills a call up to its number of rows."""

    @abstractmethod
    def _is_tied(self, num_open_ties: int) -> bool:
        """Whether there is an order of ties to look for."""

    @abstractmethod
    def _is_in_order(self, seen: Observation, until_us: int) -> bool:
        """Whether ties before a time came in the reference's order; else it is corrected for the next time."""

    def numbers(self, shape: EngineShape) -> Params:
        """Return everything numeric that the run depends on besides its requests."""
        sizes = shape.num_requests, shape.num_changes
        arguments = self.config, shape.num_instances, self.policy_seed, self.policies
        return params(*arguments, *sizes)

    def state(self) -> dict[str, Any]:
        """Return what the calls so far have changed."""
        return {name: getattr(self, name) for name in self.changing}

    def hold(self, shape: EngineShape, demand: Mapping[str, Any]) -> None:
        """Take over the sizes of the last call, and what it has shown of the requests."""
        known = dataclasses.replace(self.sizes.demand, **demand)
        self.sizes = dataclasses.replace(self.sizes, shape=shape, demand=known)

    def is_settled(self, outcome: Outcome, num_open_ties: int) -> bool:
        """Return whether a call that ended so was the last one, so that nothing of it is needed but its figures."""
        if self._goes_on(outcome):
            return False
        if grown(self.sizes, outcome) is not None:
            return self.is_last
        return outcome not in _ORDERED or not self._is_tied(num_open_ties)

    @property
    def is_last(self) -> bool:
        """Return whether no further repair is allowed."""
        return self.repairs + 1 >= self.most_repairs

    def take(self, outcome: Outcome, look: Callable[[], Observation]) -> RunRecord | None:
        """Return the record if the call was the last; else repair the run (larger tables, another
        order of ties) and return None: it is to be made again.
        """
        if self._goes_on(outcome):
            whole = self._to_horizon()
            self.is_too_long = whole.outcome() == Outcome.LIVELOCK != outcome
            if not self.is_too_long:
                outcome, look = whole.outcome(), lambda: whole
        is_last, repairs = self.is_last, self.repairs
        self.repairs += 1
        larger = grown(self.sizes, outcome)
        if larger is not None and not is_last:
            self.sizes = larger
            return None
        observation, changes = look(), dict[str, Any](outcome=outcome)
        changes["has_priorities"] = has_priorities(self.functions)
        if outcome in _ORDERED and self._is_tied(observation.num_open_ties()):
            until_us = NEVER_US if outcome in WHOLE else observation.last_step_us
            is_in_order = self._is_in_order(observation, until_us)
            if not (is_in_order or is_last):
                return None
            verified = {"num_open_ties": 0} if is_in_order else {"outcome": Outcome.OPEN_TIE}
            changes |= verified
        if Orders in observation.raw:
            orders = observation.raw[Orders].number[: observation.num_instances].tolist()
            changes["names"] = instance_names(self.config, orders)
        record = run_record(observation, repairs)
        if record.adapters is not None:
            ids = tuple(adapter.id for adapter in self.config.lora_config.adapters)
            changes["adapters"] = dataclasses.replace(record.adapters, ids=ids)
        return self._with_regret(dataclasses.replace(record, **changes), observation)

    def _with_regret(self, record: RunRecord, seen: Observation) -> RunRecord:
        """The record with what the router's choices have cost, where it was watched."""
        del seen
        return record

    def _goes_on(self, outcome: Outcome) -> bool:
        """Whether a run is to be made again in stretches, up to its horizon or its requests' deadlines.

        One that stalled is; and one that fills the log or the record of preemptions once more, since each larger size
        would be another program.
        """
        is_long = outcome in _RECORDS_FULL and self.repairs >= MOST_GROWTHS
        is_long = is_long and self.sizes.shape.num_blocks > 0 and not self.is_too_long
        arguments = self.config.horizon, self.functions, self.has_deadlines
        return (is_long or outcome == Outcome.LIVELOCK) and has_end(*arguments)

    def _to_horizon(self) -> Observation:
        """The run again, past barren steps up to the horizon."""
        shape, options = self.sizes.shape, self.sizes.options
        inputs = self.inputs(shape)
        raw = run_to_horizon(shape, self.functions, inputs, options.max_scan_steps)
        return Observation(raw, inputs[1], inputs[0], shape, self.functions)


@dataclass(frozen=True)
class Row:
    """One run of given requests."""

    config: ClusterConfig
    table: RequestTable  # numpy
    policy_seed: int  # of the policies' own draws, see policies/seeds.py
    policies: Policies | None = None  # in place of those that the configuration names
    # see `Order`, of the table's requests
    part_texts: Int[np.ndarray, "part request"] | None = None


class GivenRun(Run):
    """A run of given requests; events of one microsecond come in the reference's order."""

    most_repairs = 4000
    changing = (*Run.changing, "order", "has_replayed")

    def __init__(self, row: Row, options: Options) -> None:
        """Before the first time."""
        functions = mechanism(row.config, row.policies)
        sizes = first_sizes(demand_of_table(row.config, row.table, options), options, functions)
        super().__init__(row.config, row.policy_seed, row.policies, functions, sizes)
        self.table, self.part_texts, self.has_replayed = row.table, row.part_texts, False
        self.has_deadlines = hasattr(row.table, "timeout_us")
        self.in_order: Observation | None = None  # known to be in the reference's order
        count = int(np.sum(np.asarray(row.table.arrival_us) != NEVER_US))
        self.order = TieOrder(np.arange(count, dtype=np.int32), np.full(count, -1, np.int32))

    @property
    def kind(self) -> Hashable:
        """Return what the run's program depends on: runs under pressure stand apart from the others,
        whose program is faster.
        """
        shape = self.sizes.shape
        return self.functions, type(self.table), shape.block_size, shape.num_blocks > 0

    @property
    def plan(self) -> None:
        """Return None, since nothing is drawn."""
        return None

    def source(self, shape: EngineShape) -> tuple[RequestTable, EngineOrder]:
        """Return requests and order in the sizes of `shape`, which must hold the run's own."""
        table = self.table
        if shape.num_nodes == 0:
            empty = np.full((table.num_rows, 1), -1, np.int32)
            zero = np.zeros(1, np.int32)
            table = dataclasses.replace(table, path_nodes=empty, node_start=zero, node_blocks=zero)
        table = pad_to(table, shape.num_requests, max(shape.num_nodes, 1), shape.path_depth)
        count = len(self.order.queue_rank)
        rank = np.arange(shape.num_requests, dtype=np.int32)
        rank[:count] = self.order.queue_rank
        after = np.full(shape.num_requests, -1, np.int32)
        after[:count] = self.order.after_steps
        texts = self.part_texts
        if texts is not None:
            texts = np.pad(texts, ((0, 0), (0, shape.num_requests - texts.shape[1])))
        return table, EngineOrder(rank, after, texts)

    def inputs(self, shape: EngineShape) -> Inputs:
        """Return the inputs of the call: numbers of the configuration, then the table of requests and
        what belongs to it.
        """
        return self.numbers(shape), *self.source(shape)

    def filler(self) -> Run:
        """Return the same run without requests, which costs next to nothing."""
        empty = copy.copy(self)
        never = np.full_like(np.asarray(self.table.arrival_us), NEVER_US)
        empty.table = dataclasses.replace(self.table, arrival_us=never)
        return empty

    def _is_tied(self, num_open_ties: int) -> bool:
        """Without the reference's defects there is no order to look for."""
        if not self.sizes.options.resolve_ties or self.sizes.shape.is_continuous:
            return False
        functions = self.functions
        if functions.moves_requests or functions.has_queue or functions.leaves_early:
            return False  # the reference knows none of this
        if self.functions.rules.has_order:
            return False
        return self.has_replayed or (not self.config.corrected and num_open_ties > 0)

    @property
    def is_long(self) -> bool:
        """Return whether the run is so long that starting it again after a wrong tie costs more than
        keeping checkpoints.
        """
        return len(self.order.queue_rank) >= LONG_TABLE and self._is_tied(1)

    def in_stretches(self, shape: EngineShape) -> Observation:
        """Make the run in tables of `shape`, with ties corrected on the way; the observation stays in `in_order`."""
        inputs, options = self.inputs(shape), self.sizes.options
        run = LongRun(shape, self.functions, inputs, self.order, options.max_scan_steps)
        self.in_order = Observation(run.run(), inputs[1], inputs[0], shape, self.functions)
        return self.in_order

    def _with_regret(self, record: RunRecord, seen: Observation) -> RunRecord:
        if Regrets not in seen.raw:
            return record
        ranks = np.asarray(self.table.tie_rank)[: seen.num_requests]
        of_gateways = np.asarray(seen.raw[Regrets].of, np.int64)[..., ranks]
        regret = of_gateways.reshape(-1, len(ranks)).max(0)  # a request is routed by one
        return dataclasses.replace(
            record, requests=dataclasses.replace(record.requests, regret=regret)
        )

    def _is_in_order(self, seen: Observation, until_us: int) -> bool:
        self.has_replayed = True
        is_known = seen is self.in_order
        return is_known or correct(seen.histories(), self.order, before_us=until_us)


class Point:
    """A configuration and a workload, shared by its runs of many seeds."""

    def __init__(
        self, config: ClusterConfig, spec: WorkloadSpec, policies: Policies | None = None
    ) -> None:
        """`policies` take the place of those that the configuration names."""
        self.config, self.spec, self.policies = config, spec, policies
        self.functions = mechanism(config, policies)
        self._plans: dict[float, DrawPlan] = {}

    def plan(self, headroom: float = 1.0) -> DrawPlan:
        """Return the plan of the draws; more headroom means more draws, which extend the same streams."""
        if headroom not in self._plans:
            block_size = self.config.block_size_in_tokens
            self._plans[headroom] = compile_plan(
                self.spec, block_size=block_size, headroom=headroom
            )
        return self._plans[headroom]

    @cached_property
    def kind(self) -> Hashable:
        """Return what must be equal for the runs of two points to share a compilation."""
        plan = self.plan()
        clients = tuple(
            dataclasses.replace(client, num_proposals=0) for client in plan.shape.clients
        )
        num_requests = plan.shape.num_requests if plan.shape.is_capped else None
        leaves = tuple(np.shape(leaf) for leaf in jax.tree.leaves(plan.params))
        return self.functions, self.config.block_size_in_tokens, clients, num_requests, leaves


class DrawnRun(Run):
    """A run whose requests are drawn in the call; its ties stay as the engine has them."""

    most_repairs = 8
    is_empty = False  # it fills a call up

    def __init__(self, point: Point, seed: int, sizes: Sizes, place: tuple[int, int]) -> None:
        """`sizes` are those of its kind to begin with."""
        super().__init__(point.config, policy_seed(seed), point.policies, point.functions, sizes)
        self.point, self.seed, self.place = point, seed, place

    @property
    def kind(self) -> Hashable:
        """Return the kind of the point, under pressure or not."""
        return self.point.kind

    @property
    def plan(self) -> PlanShape:
        """Return the run's own plan, which that of its call must hold."""
        return self.point.plan(self.sizes.headroom).shape

    def source(self, shape: EngineShape) -> tuple[Any, np.uint32]:
        """Return the numbers of the draw, and its seed."""
        numbers = self.point.plan(self.sizes.headroom).params
        if self.is_empty:
            numbers = dataclasses.replace(numbers, horizon_us=np.int64(0))
        return numbers, np.uint32(self.seed)

    def inputs(self, shape: EngineShape) -> Inputs:
        """Draw the run's requests once more, by themselves; return numbers, requests and order."""
        plan = dataclasses.replace(self.plan, num_requests=shape.num_requests)
        with jax.enable_x64(True):
            drawn = compiled(drawn_of, plan)(*jax.tree.map(stacked, self.source(shape)))
            table, order = jax.tree.map(lambda leaf: leaf[0], jax.device_get(drawn[0]))
        return self.numbers(shape), table, order

    def filler(self) -> Run:
        """Return the same run without requests."""
        empty = copy.copy(self)
        empty.is_empty = True
        return empty

    def _is_tied(self, num_open_ties: int) -> bool:
        return False

    def _is_in_order(self, seen: Observation, until_us: int) -> bool:
        return True


def larger_plan(plan_shape: PlanShape, other: PlanShape) -> PlanShape:
    """Return the shape that holds the draws of two plans, which differ in sizes only."""
    clients = tuple(
        dataclasses.replace(
            client, num_proposals=max(client.num_proposals, other_client.num_proposals)
        )
        for client, other_client in zip(plan_shape.clients, other.clients, strict=True)
    )
    num_requests = max(plan_shape.num_requests, other.num_requests)
    return dataclasses.replace(plan_shape, clients=clients, num_requests=num_requests)
