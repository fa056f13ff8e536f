"""A robustness study before its runs: the workloads of its cells; strategies, cells and seeds, checked together."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.metrics.measure import Measure
from blis_jax.metrics.metric import Metric
from blis_jax.metrics.reference import class_code
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.statistics.sequential import StoppingRule
from blis_jax.traces.source import TraceSource
from blis_jax.workload.spec import WorkloadSpec, override, with_zipf
from sweeps.claims.grammar import Claim, parse_constraint, reported_names
from sweeps.robustness.cells import BY_NAME, Place, config_in
from sweeps.runs.axes import StudyAxis
from sweeps.runs.requests import workload_from
from sweeps.strategies.arms import Arm

# --- the workload of a cell: a shape at its rate and burstiness, for as long as in every cell -----


PUBLISHED_DURATION_S = 0.5  # 1,000 requests at 2,000 a second
MOST_REQUESTS = 1_000_000


@dataclass(frozen=True)
class Extent:
    """The extent of the requests: a duration, or a number whatever the rate; exactly one of the two."""

    duration_s: float | None = PUBLISHED_DURATION_S
    num_requests: int | None = None

    def __post_init__(self) -> None:
        """Refuse an extent without requests."""
        if self.num_requests is not None and not 1 <= self.num_requests <= MOST_REQUESTS:
            raise ConfigError(
                f"--num-requests must be between 1 and {MOST_REQUESTS}, got {self.num_requests}"
            )
        if self.duration_s is not None and not 0 < self.duration_s <= 1e6:
            raise ConfigError(
                f"--duration must be above 0 and at most 1e6 s, got {self.duration_s:g}"
            )

    def at(self, rate: float) -> tuple[int, float]:
        """Return the number of requests and the seconds at a rate.

        Raises:
            ConfigError: the number of requests is not allowed.
        """
        if self.num_requests is not None:
            return self.num_requests, self.num_requests / rate
        assert self.duration_s is not None
        count = round(rate * self.duration_s)
        if not 1 <= count <= MOST_REQUESTS:
            raise ConfigError(
                f"a rate of {rate:g}/s for {self.duration_s:g} s makes {count} requests, allowed "
                f"are 1 to {MOST_REQUESTS}; change --duration or --rate"
            )
        return count, self.duration_s


@dataclass(frozen=True)
class Shape:
    """A workload whose rate, burstiness and extent are set by each cell."""

    name: str
    spec: WorkloadSpec

    @property
    def has_sessions(self) -> bool:
        """Return whether some client's requests come in rounds of a conversation."""
        return any(client.multi_turn for client in self.spec.clients)

    def at(self, rate: float, cv: float, extent: Extent, zipf: float | None = None) -> WorkloadSpec:
        """Return the workload at `rate` requests/s, with gaps between arrivals of coefficient of variation `cv`.

        The popularity of adapters falls with the exponent `zipf`, by default the workload's own.

        Gaps are gamma-distributed, or Weibull if the shape's are. Think times are shortened until all rounds fit into
        the extent; fewer conversations begin, so that requests arrive at the rate.
        """
        num_requests, duration_s = extent.at(rate)
        document = self.spec.model_dump()
        rounds = []
        for client in document["clients"]:
            is_weibull = client["arrival"]["process"] == "weibull"
            client["arrival"] = {"process": "weibull" if is_weibull else "gamma", "cv": cv}
            rounds.append(_squeezed(client, duration_s))
        fractions = [client.rate_fraction for client in self.spec.clients]
        per_arrival = sum(f * r for f, r in zip(fractions, rounds, strict=True)) / sum(fractions)
        spec = self.spec if zipf is None else with_zipf(self.spec, zipf)
        return override(
            spec,
            clients=document["clients"],
            aggregate_rate=rate / per_arrival,
            num_requests=num_requests,
        )

    def longest_think_s(self) -> float:
        """Return the longest time between two rounds, s; 0 without conversations."""
        turns = [client.multi_turn for client in self.spec.clients]
        return max((turn.think_time_us / 1e6 for turn in turns if turn), default=0.0)


def _squeezed(client: dict[str, Any], duration_s: float) -> float:
    """Shorten think times, in place; return the requests within the duration per request that begins a conversation."""
    turns = (client.get("reasoning") or {}).get("multi_turn")
    if not turns:
        return 1.0
    most_us = int(duration_s * 1e6 / turns["max_rounds"])
    turns["think_time_us"] = min(turns["think_time_us"], most_us)
    share = turns["think_time_us"] / (duration_s * 1e6)
    return sum(1 - index * share for index in range(turns["max_rounds"]))


@dataclass(frozen=True)
class TraceShape:
    """A trace whose rate is set by each cell; all else is as recorded."""

    name: str
    spec: TraceSource

    @property
    def has_sessions(self) -> bool:
        """Return whether prompts share content."""
        return self.spec.is_sharing

    def at(self, rate: float, cv: float, extent: Extent, zipf: float | None = None) -> TraceSource:
        """Return the trace at a mean of `rate` requests/s; all else stays as recorded."""
        if zipf is not None:
            raise ConfigError("--adapter-zipf: a trace names its adapters; leave the axis out")
        return self.spec.at_rate(rate)


def load_shape(name: str) -> Shape:
    """Return a workload, named or in a .yaml file, as a shape.

    Raises:
        ConfigError: the workload has no clients whose rate could be set.
    """
    spec = workload_from(name, "--shape", follows=False)
    if not spec.clients or getattr(spec, "cohorts", None):
        raise ConfigError(
            f"--shape: {name} has no clients of its own, so its rate cannot be set; give a workload "
            "with clients"
        )
    return Shape(name, spec)


# --- the plan -------------------------------------------------------------------------------------


OBJECTIVE = "ttft_p99_ms[critical]"
CONSTRAINTS = ("ttft_p99_ms[sheddable]<=200%", "tokens_per_sec>=95%")
FEWEST_OF_CLASS = 30  # requests of a class from which its P99 is more than its worst request


@dataclass(frozen=True)
class Question:
    """The question that a map answers: the objective, the constraints, and the required confidence.

    Constraints in % are of the first strategy's mean.
    """

    objective: str = OBJECTIVE
    constraints: tuple[Claim, ...] = tuple(map(parse_constraint, CONSTRAINTS))
    confidence: float = 0.95
    random_state: int = 0

    def __post_init__(self) -> None:
        """Refuse unknown metrics and impossible confidence."""
        lookup(self.objective)
        if not 0.5 < self.confidence < 1:
            raise ConfigError(f"--confidence must be between 0.5 and 1, got {self.confidence:g}")

    @property
    def metric(self) -> Metric:
        """Return the objective's metric; its direction says what is better."""
        return lookup(self.objective)[0]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the name of every metric that the question needs."""
        return tuple(
            dict.fromkeys((self.objective, *(constraint.metric for constraint in self.constraints)))
        )


@dataclass(frozen=True)
class MapPlan:
    """All inputs that a map's numbers depend on, except the version."""

    arms: tuple[Arm, ...]
    axes: tuple[StudyAxis, ...]
    cells: tuple[Place, ...]  # in the order in which they are run
    reference: Place
    shapes: Mapping[str, Shape | TraceShape]
    extent: Extent
    seeds: tuple[int, ...]
    stream: str
    measures: Mapping[str, Measure]  # by shape
    names: tuple[str, ...]  # of the metrics, `[class]` behind or not
    is_every_seed_run: bool = False  # even where a strategy livelocks on the first one
    question: Question = dataclasses.field(default_factory=Question)  # what is asked of every cell
    stopping: StoppingRule | None = None  # when a cell has seeds enough; `seeds` are the most
    num_first_seeds: int = 0  # every cell is run on, before the rule is asked

    @property
    def first_stage(self) -> tuple[int, ...]:
        """Return the seeds that every cell is run on."""
        return self.seeds if self.stopping is None else self.seeds[: self.num_first_seeds]

    @property
    def classes(self) -> tuple[str, ...]:
        """Return `all`, and every SLO class for which a metric is needed."""
        classes = [lookup(name)[1] for name in self.names]
        return (ALL, *dict.fromkeys(name for name in classes if name is not None))

    def cells_per_part(self, runs_per_part: int) -> int:
        """Return the number of cells that are written together."""
        return max(runs_per_part // (len(self.arms) * len(self.seeds)), 1)

    def engine_group(self, place: Place) -> tuple[Any, ...]:
        """Return a key of cells with the same compiled programs: number of instances, whether prompts share content."""
        return place["instances"], self.shapes[place["shape"]].has_sessions


def make_plan(
    arms: Sequence[Arm],
    axes: Sequence[StudyAxis],
    cells: Sequence[Place],
    reference: Place,
    shapes: Mapping[str, Shape | TraceShape],
    extent: Extent,
    seeds: Sequence[int],
    stream: str,
    measures: Mapping[str, Measure],
    question: Question,
    is_every_seed_run: bool = False,
    stopping: StoppingRule | None = None,
) -> MapPlan:
    """Return the plan of a map, checked; a stopping rule adds seeds to the given ones."""
    metrics_asked = question.names
    check_arms(arms, axes)
    _check_classes(shapes, metrics_asked)
    reported = [name for shape in shapes.values() for name in reported_names(shape.spec)]
    names = tuple(dict.fromkeys((*reported, *metrics_asked)))
    plan = MapPlan(
        tuple(arms), tuple(axes), tuple(cells), dict(reference), dict(shapes), extent, _all_seeds(seeds, stopping),
        stream, dict(measures), names, is_every_seed_run, question, stopping, len(seeds),
    )  # fmt: skip
    _check_workloads(plan)
    return dataclasses.replace(plan, cells=_in_run_order(plan))


def _all_seeds(first: Sequence[int], stopping: StoppingRule | None) -> tuple[int, ...]:
    """Return all seeds that a cell may run on."""
    if stopping is None:
        return tuple(first)
    return tuple(range(first[0], first[0] + stopping.most_seeds))


def _in_run_order(plan: MapPlan) -> tuple[Place, ...]:
    """Return the cells in run order: by engine shape, then by workload, largest first, whose programs others use."""
    names = ("arrival_cv", "kv_blocks", "kv_cpu_blocks", "step_constant")
    shapes = list(plan.shapes)

    def key(place: Place) -> tuple[Any, ...]:
        workload = -place["rate"], shapes.index(place["shape"])
        return (plan.engine_group(place), workload, *(place[name] for name in names))

    return tuple(sorted(plan.cells, key=key))


def check_arms(arms: Sequence[Arm], axes: Sequence[StudyAxis]) -> None:
    """Refuse arms that cells make equal or that cannot run on an axis's value; warn of settings that cells replace."""
    if len(arms) < 2:
        raise ConfigError(f"{len(arms)} arm is given; give two or more to be compared")
    usual = {axis.name: axis.reference for axis in axes}
    for arm in arms:
        for axis in axes:
            for value in axis.values:
                _placed(arm, axis, usual | {axis.name: value})
    placed = [config_in(arm.config, usual) for arm in arms]
    for later in range(1, len(arms)):
        for earlier in range(later):
            if placed[earlier] == placed[later]:
                raise ConfigError(
                    f"arms {arms[earlier].name!r} and {arms[later].name!r} are the same in every "
                    "cell, which sets memory, CPU tier, instances and step constant itself"
                )
    for name in ("total_kv_blocks", "kv_cpu_blocks", "num_instances"):
        if len({getattr(arm.config, name) for arm in arms}) > 1:
            text = f"the arms differ in {name}, which every cell sets alike for all of them"
            warnings.warn(ConfigWarning(text), stacklevel=2)


def _placed(arm: Arm, axis: StudyAxis, place: Place) -> ClusterConfig:
    try:
        return config_in(arm.config, place)
    except ConfigError as error:
        raise ConfigError(f"{BY_NAME[axis.name].option}, arm {arm.name!r}: {error}") from None


def _check_classes(shapes: Mapping[str, Shape | TraceShape], names: Sequence[str]) -> None:
    """Refuse a metric of a class that a workload lacks."""
    for name in names:
        _, slo_class = lookup(name)
        for shape in shapes.values():
            classes = shape.spec.slo_classes
            if slo_class is not None and slo_class not in classes:
                has = ", ".join(sorted(classes))
                raise ConfigError(
                    f"{name} is asked for, but workload {shape.name} has no requests of class "
                    f"{slo_class}; it has {has}"
                )


def _check_workloads(plan: MapPlan) -> None:
    """Refuse workloads that cannot be made or measured; warn where conversations are shortened or classes are small."""
    rates = next(axis.values for axis in plan.axes if axis.name == "rate")
    cvs = next(axis.values for axis in plan.axes if axis.name == "arrival_cv")
    zipf = plan.reference.get("adapter_zipf")
    for shape in plan.shapes.values():
        for rate in rates:
            for cv in cvs:
                plan.measures[shape.name].check(shape.at(rate, cv, plan.extent, zipf))
        if isinstance(shape, TraceShape):
            _note_small_classes_of(plan, shape)
            continue
        least_s = min(plan.extent.at(rate)[1] for rate in rates)
        rounds = max(
            (c.multi_turn.max_rounds for c in shape.spec.clients if c.multi_turn), default=1
        )
        if shape.longest_think_s() * rounds > least_s:
            text = (
                f"{shape.name}: rounds follow each other after {least_s / rounds:g} s instead of "
                f"{shape.longest_think_s():g} s, so that all of them fit into {least_s:g} s; a "
                "longer --duration leaves them as they are"
            )
            warnings.warn(ConfigWarning(text), stacklevel=2)
        _note_small_classes(plan, shape, min(plan.extent.at(rate)[0] for rate in rates))


def _note_small_classes_of(plan: MapPlan, shape: TraceShape) -> None:
    """Warn likewise for a trace, whose number of requests is fixed."""
    rows = shape.spec.trace.rows.slo_class
    runs = shape.spec.num_windows or 1
    for slo_class in shape.spec.slo_classes:
        count = int((rows == class_code(slo_class)).sum()) / runs
        if count < FEWEST_OF_CLASS:
            text = (
                f"{shape.name}: about {count:.0f} requests of a run are {slo_class}, so their "
                "99th percentile is the longest one; fewer windows have more requests each"
            )
            warnings.warn(ConfigWarning(text), stacklevel=2)


def _note_small_classes(plan: MapPlan, shape: Shape, fewest: int) -> None:
    """Warn where a class has so few requests that its 99th percentile is its slowest request."""
    total = sum(client.rate_fraction for client in shape.spec.clients)
    shares: dict[str, float] = {}
    for client in shape.spec.clients:
        name: str = client.slo_class or "default"
        shares[name] = shares.get(name, 0.0) + client.rate_fraction / total
    rarest, share = min(shares.items(), key=lambda item: item[1])
    if share * fewest < FEWEST_OF_CLASS:
        text = (
            f"{shape.name}: at the lowest rate about {share * fewest:.0f} requests of a run are "
            f"{rarest}, so their 99th percentile is the longest one; a longer --duration has more "
            "requests"
        )
        warnings.warn(ConfigWarning(text), stacklevel=2)
