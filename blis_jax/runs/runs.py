"""One run until it has a record: the source of its requests, its table sizes, and its repairs."""

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
from blis_jax.runs.demand import LONG_TABLE, demand_of_table
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled, drawn_of
from blis_jax.runs.sizes import Sizes, first_sizes, grown
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
    """One run to make, and to repeat: with larger tables if it did not fit, or with ties in another order.

    A fault that cannot be repaired stays in the record's `outcome`.
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
        """Set up the run; `policies` replace the policies that the configuration names."""
        self.config, self.policy_seed, self.policies = config, policy_seed, policies
        self.functions, self.sizes, self.repairs = functions, sizes, 0

    @property
    @abstractmethod
    def kind(self) -> Hashable:
        """Return the key of the run's program, besides sizes."""

    @property
    @abstractmethod
    def plan(self) -> PlanShape | None:
        """Return how the requests are drawn inside the call, or None if they are given."""

    @abstractmethod
    def source(self, shape: EngineShape) -> tuple[Any, Any]:
        """Return the source of the requests, in the form that `programs.rows_of` expects."""

    @abstractmethod
    def inputs(self, shape: EngineShape) -> Inputs:
        """Return the run's numbers, its table of requests and their order, on the host."""

    @abstractmethod
    def filler(self) -> Run:
        """Return a run without requests, to pad a call to its number of rows."""

    @abstractmethod
    def _is_tied(self, num_open_ties: int) -> bool:
        """Return whether the order of ties must be verified."""

    @abstractmethod
    def _is_in_order(self, seen: Observation, until_us: int) -> bool:
        """Return whether ties before `until_us` came in BLIS's order; if not, correct the order for the next call."""

    def numbers(self, shape: EngineShape) -> Params:
        """Return the run's numeric parameters, which are all its inputs besides the requests."""
        sizes = shape.num_requests, shape.num_changes
        arguments = self.config, shape.num_instances, self.policy_seed, self.policies
        return params(*arguments, *sizes)

    def state(self) -> dict[str, Any]:
        """Return the attributes that calls change, by name."""
        return {name: getattr(self, name) for name in self.changing}

    def hold(self, shape: EngineShape, demand: Mapping[str, Any]) -> None:
        """Adopt the sizes of the last call, and the demand of the requests that it has reported."""
        known = dataclasses.replace(self.sizes.demand, **demand)
        self.sizes = dataclasses.replace(self.sizes, shape=shape, demand=known)

    def is_settled(self, outcome: Outcome, num_open_ties: int) -> bool:
        """Return whether a call with this outcome is final, so that only its figures are needed."""
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
        """Return the record if the call was final; else repair the run and return None."""
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
        """Return the record with the router's regret for each request, if the router was watched."""
        del seen
        return record

    def _goes_on(self, outcome: Outcome) -> bool:
        """Return whether to repeat the run in stretches, up to its horizon or its requests' deadlines.

        So for a run that stalled, or filled the log or the record of preemptions again and again, since each larger
        size would need another program.
        """
        is_long = outcome in _RECORDS_FULL and self.repairs >= MOST_GROWTHS
        is_long = is_long and self.sizes.shape.num_blocks > 0 and not self.is_too_long
        arguments = self.config.horizon, self.functions, self.has_deadlines
        return (is_long or outcome == Outcome.LIVELOCK) and has_end(*arguments)

    def _to_horizon(self) -> Observation:
        """Repeat the run in stretches, through steps without progress, up to the horizon."""
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
    """A run of given requests; events of one microsecond are put in BLIS's order."""

    most_repairs = 4000
    changing = (*Run.changing, "order", "has_replayed")

    def __init__(self, row: Row, options: Options) -> None:
        """Set up the run, with first sizes counted from its table."""
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
        """Return the key of the run's program; runs with block-level memory have another, slower program."""
        shape = self.sizes.shape
        return self.functions, type(self.table), shape.block_size, shape.num_blocks > 0

    @property
    def plan(self) -> None:
        """Return None, since the requests are given."""
        return None

    def source(self, shape: EngineShape) -> tuple[RequestTable, EngineOrder]:
        """Return requests and order, padded to the sizes of `shape`, which must hold the run."""
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
        """Return the inputs of the call: the configuration's numbers, the table of requests, their order."""
        return self.numbers(shape), *self.source(shape)

    def filler(self) -> Run:
        """Return a copy of the run without requests, which takes almost no time."""
        empty = copy.copy(self)
        never = np.full_like(np.asarray(self.table.arrival_us), NEVER_US)
        empty.table = dataclasses.replace(self.table, arrival_us=never)
        return empty

    def _is_tied(self, num_open_ties: int) -> bool:
        """Return whether the order of ties must be verified: only with February's mechanisms and defects."""
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
        """Return whether the run is so long that a restart after a wrong tie costs more than keeping checkpoints."""
        return len(self.order.queue_rank) >= LONG_TABLE and self._is_tied(1)

    def in_stretches(self, shape: EngineShape) -> Observation:
        """Make the run in stretches, with ties corrected on the way; keep and return the observation `in_order`."""
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
    """A configuration and a workload, shared by runs of many seeds."""

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
        """Return a key; runs of points with equal keys share a compilation."""
        plan = self.plan()
        clients = tuple(
            dataclasses.replace(client, num_proposals=0) for client in plan.shape.clients
        )
        num_requests = plan.shape.num_requests if plan.shape.is_capped else None
        leaves = tuple(np.shape(leaf) for leaf in jax.tree.leaves(plan.params))
        return self.functions, self.config.block_size_in_tokens, clients, num_requests, leaves


class DrawnRun(Run):
    """A run whose requests are drawn in the call; its ties stay in the engine's order."""

    most_repairs = 8
    is_empty = False  # it fills a call up

    def __init__(self, point: Point, seed: int, sizes: Sizes, place: tuple[int, int]) -> None:
        """Set up the run of a seed; `sizes` are the first sizes of its kind, `place` is (point, seed) by index."""
        super().__init__(point.config, policy_seed(seed), point.policies, point.functions, sizes)
        self.point, self.seed, self.place = point, seed, place

    @property
    def kind(self) -> Hashable:
        """Return the kind of the point, which all its runs share, with block-level memory or without."""
        return self.point.kind

    @property
    def plan(self) -> PlanShape:
        """Return the run's plan of draws; the plan of its call must hold it."""
        return self.point.plan(self.sizes.headroom).shape

    def source(self, shape: EngineShape) -> tuple[Any, np.uint32]:
        """Return the numbers of the draws, and the seed."""
        numbers = self.point.plan(self.sizes.headroom).params
        if self.is_empty:
            numbers = dataclasses.replace(numbers, horizon_us=np.int64(0))
        return numbers, np.uint32(self.seed)

    def inputs(self, shape: EngineShape) -> Inputs:
        """Draw the run's requests again, outside of the call; return numbers, requests and order."""
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
    """Return the shape that holds the draws of both plans, which must differ in sizes only."""
    clients = tuple(
        dataclasses.replace(
            client, num_proposals=max(client.num_proposals, other_client.num_proposals)
        )
        for client, other_client in zip(plan_shape.clients, other.clients, strict=True)
    )
    num_requests = max(plan_shape.num_requests, other.num_requests)
    return dataclasses.replace(plan_shape, clients=clients, num_requests=num_requests)
