"""Kinds of clusters by number of instances, and the smallest of a kind that meets the targets, on common seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.core.outcome import WHOLE
from blis_jax.errors import ConfigError, closest
from blis_jax.latency.model_description import is_shipped
from blis_jax.latency.registry import FROM_SIZES, SIZED, Coefficients, fitted, lookup
from blis_jax.metrics.measure import Measure, window_of
from blis_jax.metrics.summaries import select
from blis_jax.records.record import RunRecord
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options, default_form
from blis_jax.statistics.sequential import (
    DECIDED,
    GOES_ON,
    SPENT,
    FixedCounts,
    Look,
    look_until_end,
)
from sweeps.capacity.deciding import Decision, ServiceTarget, decide, looks, num_tries
from sweeps.claims.words import FAILS, MEETS, OPEN
from sweeps.runs.experiment import Experiment
from sweeps.strategies.arms import Arm, key_of

if TYPE_CHECKING:
    from blis_jax.files.journal import Journal
    from sweeps.runs.requests import StudyRequests


# --- kinds of clusters ----------------------------------------------------------------------------


SHARES = (0.25, 0.5, 0.75)  # of the first of two GPUs, or of prefill instances
PREFILL, DECODE, BOTH = "prefill", "decode", "both"


@dataclass(frozen=True)
class Hardware:
    """The GPUs of an instance, their price and their coefficients; None keeps the policy's coefficients."""

    gpu: str = ""
    num_gpus: int = 1  # of one instance
    price: float = 1.0  # of a GPU-hour
    coefficients: Coefficients | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the policy on this GPU

    def group(self, count: int, role: str) -> InstanceGroup:
        """Return a group of `count` instances on this hardware."""
        group = InstanceGroup(count, self.gpu, role)
        if self.coefficients is None:
            return group
        fit = self.coefficients
        return replace(
            group,
            alpha_coeffs=fit.alpha,
            beta_coeffs=fit.beta,
            **{"total_kv_blocks": fit.total_kv_blocks, **self.settings},
        )

    def described(self, config: ClusterConfig) -> ClusterConfig:
        """Return a configuration with an instance's model, GPU and settings, for descriptions only, not for runs."""
        if self.coefficients is None:
            return config
        fit = self.coefficients
        return config.replace(model=fit.model, hardware=fit.gpu, tp=fit.tp, **self.settings)


@dataclass(frozen=True)
class EqualInstances:
    """A number of equal instances, a part of a cluster."""

    hardware: Hardware
    role: str
    count: int

    def __str__(self) -> str:
        role = "" if self.role == BOTH else f" {self.role}"
        return f"{self.count}{role}" + (f" × {self.hardware.gpu}" if self.hardware.gpu else "")


@dataclass(frozen=True)
class Layout:
    """A cluster: its groups of equal instances."""

    parts: tuple[EqualInstances, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.parts))

    @property
    def num_instances(self) -> int:
        """Return the number of instances of all kinds together."""
        return sum(part.count for part in self.parts)

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of all instances together."""
        return sum(part.count * part.hardware.num_gpus for part in self.parts)

    @property
    def cost_per_hour(self) -> float:
        """Return the price of all GPUs per hour."""
        return sum(part.count * part.hardware.num_gpus * part.hardware.price for part in self.parts)

    def configured(self, config: ClusterConfig, is_corrected: bool) -> ClusterConfig:
        """Return the configuration with this cluster's instances, roles and hand-over; its other policies stay."""
        is_split = any(part.role != BOTH for part in self.parts)
        changes: dict[str, object] = {"hand_over_policy": "pools"} if is_split else {}
        if is_corrected:
            changes["corrected"] = True
        if is_split or any(part.hardware.coefficients for part in self.parts):
            changes["instances"] = tuple(
                part.hardware.group(part.count, part.role) for part in self.parts
            )
        else:
            changes["num_instances"] = self.num_instances
        return config.replace(**changes)


@dataclass(frozen=True)
class LayoutFamily:
    """The layouts of one kind of cluster, one for each number of instances."""

    first: Hardware
    second: Hardware | None = None  # None: all instances are alike
    share: float = 1.0  # of the first hardware, or of prefill instances if split
    is_split: bool = False

    @property
    def name(self) -> str:
        """Return the words that distinguish this kind of cluster from the others, such as `50 % H100, 50 % L40S`."""
        gpu = self.first.gpu or "the policy's instances"
        if self.is_split:
            return f"{gpu}, {100 * self.share:g} % prefill"
        if self.second is None:
            return gpu
        return f"{100 * self.share:g} % {self.first.gpu}, {100 - 100 * self.share:g} % {self.second.gpu}"

    @property
    def least(self) -> int:
        """Return the fewest instances that this kind of cluster can have."""
        return 2 if self.is_split or self.second is not None else 1

    def of(self, num_instances: int) -> Layout:
        """Return the cluster of this kind with `num_instances` instances, which must be `least` or more."""
        if not self.is_split and self.second is None:
            return Layout((EqualInstances(self.first, BOTH, num_instances),))
        count = min(max(math.floor(self.share * num_instances + 0.5), 1), num_instances - 1)
        rest = num_instances - count
        if self.second is not None:
            return Layout(
                (EqualInstances(self.first, BOTH, count), EqualInstances(self.second, BOTH, rest))
            )
        return Layout(
            (EqualInstances(self.first, PREFILL, count), EqualInstances(self.first, DECODE, rest))
        )


def families(
    gpus: Sequence[str],
    model: str | None,
    tp: int | None,
    prices: Mapping[str, float],
    is_split: bool,
    arm: Arm,
) -> tuple[LayoutFamily, ...]:
    """List the kinds of clusters to try: each GPU alone, every two GPUs mixed, and pools of split roles if `is_split`.

    Without GPUs, instances have the GPUs of the arm's settings; without a model, they serve the model of the arm.

    Raises:
        ConfigError: the model has no coefficients on one of the GPUs, or a price is given for a GPU that is not tried.
    """
    for name in prices:
        if name not in gpus:
            raise ConfigError(
                f"--prices: {name!r} is not among --gpus ({', '.join(gpus) or 'none'}); leave it out"
                f"{closest(name, gpus)}"
            )
    kinds = [_hardware(gpu, model, tp, prices.get(gpu, 1.0), arm) for gpu in gpus]
    kinds = kinds or [Hardware(num_gpus=arm.config.tp * arm.config.dp)]
    kinds_of_cluster = [LayoutFamily(kind) for kind in kinds]
    for first, second in itertools.combinations(kinds, 2):
        kinds_of_cluster += [LayoutFamily(first, second, share) for share in SHARES]
    if is_split:
        kinds_of_cluster += [
            LayoutFamily(kind, share=share, is_split=True) for kind in kinds for share in SHARES
        ]
    return tuple(kinds_of_cluster)


def _hardware(gpu: str, model: str | None, tp: int | None, price: float, arm: Arm) -> Hardware:
    if model is None:
        model, tp = arm.config.model, tp or arm.config.tp
    law = arm.config.latency_model
    has_none = is_shipped(model) and not fitted(model)
    if law in FROM_SIZES or has_none:
        law, why = (SIZED[0], model) if has_none else (law, f"the latency model {law}")
        raise ConfigError(
            f"--gpus {gpu}: instances there have fitted coefficients, and {why} has none; leave --gpus out and name "
            f"the GPU in the policy, whose GPUs are counted as well: --policy 'vllm:latency_model={law};"
            f"model={model};hardware={gpu};tensor_parallel_size={tp or arm.config.tp}'"
        )
    try:
        fit = lookup(model, gpu, tp)
    except ConfigError as error:
        raise ConfigError(f"--gpus {gpu}: {error}") from None
    fit = replace(fit, total_kv_blocks=fit.blocks(arm.config.preemption_mode == "recompute"))
    return Hardware(fit.gpu, fit.tp, price, fit, arm.settings_on(fit.gpu))


# --- the smallest of a kind -----------------------------------------------------------------------


Counts = tuple[tuple[int, int], ...]  # in time and in all, by target
ROWS = 16  # of a call
OnSize = Callable[[int, Decision], None]


@dataclass(frozen=True)
class InTime:
    """Count each target's measured requests, and those of them in time; of a run that was cut off none is in time."""

    targets: tuple[ServiceTarget, ...]
    measure: Measure

    def __call__(self, record: RunRecord) -> Counts:
        """Return for each target the number of requests in time, and the number of all requests."""
        window, is_whole = window_of(self.measure, record), record.outcome in WHOLE
        counts = []
        for target in self.targets:
            chosen = select(record, target.as_slo(), window).of_name(target.slo_class)
            counts.append((chosen.num_good if is_whole else 0, chosen.num_requests))
        return tuple(counts)


class CountedRuns:
    """Run clusters on the first seeds of a list; runs in the journal are not made again."""

    def __init__(
        self, requests: StudyRequests, in_time: InTime, journal: Journal | None = None
    ) -> None:
        self.requests, self.in_time = requests, in_time
        self.journal, self.num_runs = journal, 0
        self.experiment = Experiment(requests, shared=Runner(Options(form=default_form()), ROWS))
        self.found: dict[tuple[str, int], Counts] = {}
        if journal is not None:
            for key, first, rows in journal.lines():
                self._keep(key, first, (tuple(map(tuple, row)) for row in rows))
            journal.begin()

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return all seeds that may be used."""
        return self.requests.seeds

    def of(
        self, config: ClusterConfig, num_seeds: int, wider: ClusterConfig
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of requests in time and of all requests, each `[seed, target]`, on the first `num_seeds`
        seeds.

        `wider` is a larger cluster of the same kind: the program is compiled for it, and smaller clusters use it, too.
        """
        key = key_of(config)
        first = next((at for at in range(num_seeds) if (key, at) not in self.found), num_seeds)
        if first < num_seeds:
            if not self.requests.source.waits:
                self.experiment.runner.expect(self.experiment.rows(wider, self.seeds[:1]))
            places = range(first, num_seeds)
            (counted,) = self.experiment.summaries([config], self.in_time, places)
            self.num_runs += len(counted)
            self._keep(key, first, counted)
            if self.journal is not None:
                self.journal.append([key, first, counted])
        both = np.array([self.found[key, at] for at in range(num_seeds)], np.float64)
        return both[..., 0], both[..., 1]

    def _keep(self, key: str, first: int, rows: Iterable[Counts]) -> None:
        self.found.update(((key, first + at), row) for at, row in enumerate(rows))


@dataclass(frozen=True)
class Smallest:
    """The sizes tried for one policy on one kind of cluster, with the decision on each."""

    arm: Arm
    family: LayoutFamily
    tried: dict[int, Decision]  # by number of instances, in ascending order

    @property
    def num_instances(self) -> int | None:
        """Return the fewest instances tried that are proven to meet the targets; None if no tried number is."""
        return next(
            (size for size, decision in self.tried.items() if decision.answer == MEETS), None
        )

    @property
    def likely(self) -> int | None:
        """Return the fewest instances tried that met the targets in their runs, proven or not; None if none did."""
        return next((size for size, decision in self.tried.items() if decision.reaches), None)

    @property
    def fails_at(self) -> int | None:
        """Return the most instances below `num_instances` that are proven to fail the targets; None if none are."""
        below = [
            size
            for size, decision in self.tried.items()
            if decision.answer == FAILS and size < (self.num_instances or size + 1)
        ]
        return max(below, default=None)

    @property
    def is_sharp(self) -> bool:
        """Return whether one instance less is proven to fail the targets."""
        if self.num_instances is None:
            return False
        return self.num_instances == self.family.least or self.fails_at == self.num_instances - 1


def _fewest_between(low: int, high: int, does: Callable[[int], bool]) -> None:
    """Bisect sizes until `low`, which fails the targets, and `high`, which meets them, are neighbours; `does` tries
    one."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if does(middle) else (middle, high)


@dataclass(frozen=True)
class Finder:
    """Find the smallest cluster by doubling the size, then by bisection."""

    runs: CountedRuns
    confidence: float
    most: int  # instances

    @property
    def num_tries(self) -> int:
        """Return the most sizes that are tried: sizes found by doubling or halving, then by bisection."""
        return num_tries(self.most)

    def find(self, arm: Arm, family: LayoutFamily, is_corrected: bool, on_size: OnSize) -> Smallest:
        """Return the smallest cluster of one kind for one policy."""
        tried: dict[int, Decision] = {}

        def decision(size: int) -> Decision:
            if size not in tried:
                tried[size] = self._decision(arm, family, size, is_corrected)
                on_size(size, tried[size])
            return tried[size]

        def meets(size: int) -> bool:
            return decision(size).answer == MEETS

        least = family.least
        size = min(max(arm.config.num_instances, least), self.most)
        if meets(size):
            while size > least and meets(max(size // 2, least)):
                size = max(size // 2, least)
            low, high = max(size // 2, least), size
        else:
            while size < self.most and not meets(min(2 * size, self.most)):
                size = min(2 * size, self.most)
            low, high = size, min(2 * size, self.most)
        _fewest_between(low, high, meets)
        found = Smallest(arm, family, dict(sorted(tried.items())))
        if found.num_instances is not None or found.likely is None:
            return found
        below = max((size for size in found.tried if size < found.likely), default=least - 1)
        _fewest_between(below, found.likely, lambda size: decision(size).reaches)
        return replace(found, tried=dict(sorted(tried.items())))

    def _decision(self, arm: Arm, family: LayoutFamily, size: int, is_corrected: bool) -> Decision:
        shares = [target.share for target in self.runs.in_time.targets]
        every = looks(len(self.runs.seeds))
        wider = min(max(1 << (size - 1).bit_length(), family.least), max(self.most, size))
        configs = [
            family.of(number).configured(arm.config, is_corrected) for number in (size, wider)
        ]
        error = (1 - self.confidence) / self.num_tries

        def look_at(num_seeds: int) -> Look[Decision]:
            counts = self.runs.of(configs[0], num_seeds, configs[1])
            decision = decide(*counts, shares, error, len(every))
            end = SPENT if num_seeds == every[-1] else GOES_ON
            return Look(num_seeds, decision, end=end if decision.answer == OPEN else DECIDED)

        return look_until_end(FixedCounts(every), every[0], look_at)[-1].found
