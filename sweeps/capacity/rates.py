"""The curve of one cluster: the rate at which it is full, then metrics at shares of that rate, on the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.cluster.instance_groups import num_gpus
from blis_jax.errors import ConfigError
from blis_jax.runs.driver import Runner
from blis_jax.runs.options import Options, default_form
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.runs.experiment import Experiment
from sweeps.strategies.arms import Arm, key_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.files.journal import Journal

NAMES = (
    "requests_per_s",
    "output_tokens_per_s",
    "tpot_mean_ms",
    "ttft_mean_ms",
    "ttft_p99_ms",
    "e2e_mean_ms",
    "scheduling_delay_mean_ms",
)
PARTS = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.9, 1.0)  # of the rate at which a cluster is full
WARM_UP = 0.5  # of the arrivals' time, until as many leave as come
TO_LAST_S = 1e-6  # rates are measured up to the last arrival, and not while the cluster empties
ARRIVING = "arrivals_per_s"  # beside the metrics: few drawn requests may come faster or slower than they should
KEEPS_UP = 0.9  # of the arrivals that leave: below it a cluster is full
FIRST_RATE, MOST_RATE = 8.0, 1e6  # per second and instance; of all
SPANS = 2.0  # services that a warm-up should last
# of the arrivals that leave: above it few requests may show a cluster as full that is not
CLEAR = 0.7
FEWEST, LONGER = 8000, 4  # requests of all seeds that do not; times those of a run that are too few
LENGTHS = (1, 2, 4, 8)  # of a run, times the requests that are asked for
STEP = 2.0  # from one try to the next, until a cluster is full
Values = dict[str, list[float]]  # by metric, of each seed


class RatedRuns(NamedTuple):
    """The runs at one rate: their number of requests, and each metric by seed."""

    num_requests: int
    values: Values

    @property
    def kept(self) -> float:
        """Return requests that leave ÷ requests that arrive."""
        leaving, arriving = (sum(self.values[name]) for name in ("requests_per_s", ARRIVING))
        return leaving / max(arriving, 1e-9)

    def is_short(self, rate: float) -> bool:
        """Return whether serving a request takes so long that the warm-up may not have filled the cluster."""
        inside = zip(
            self.values["e2e_mean_ms"], self.values["scheduling_delay_mean_ms"], strict=True
        )
        served_ms = np.mean([whole - waiting for whole, waiting in inside])
        return bool(SPANS * served_ms > 1000 * WARM_UP * self.num_requests / rate)


@dataclass(frozen=True)
class CurvePoint:
    """The metrics of one cluster at one rate, means over seeds with intervals."""

    rate: float  # requests/s that arrive
    figures: dict[str, Estimate]  # by metric, and those per user and per GPU

    def to_json(self) -> dict[str, Any]:
        """Return the point as plain data."""
        figures = {name: figure.to_json() for name, figure in self.figures.items()}
        return {"rate": self.rate, "figures": figures}


@dataclass(frozen=True)
class RateCurve:
    """The points of one cluster at all rates, and the rate at which it is full."""

    arm: Arm
    full: Estimate  # requests/s that leave when more come than it serves
    points: tuple[CurvePoint, ...]
    is_short: bool  # requests were served for so long, against the arrivals' time, that it may not have filled up

    @property
    def num_gpus(self) -> int:
        """Return the number of GPUs of the cluster."""
        return num_gpus(self.arm.config)

    @property
    def full_of_gpu(self) -> Estimate:
        """Return the requests/s that the full cluster completes per GPU."""
        return self.full.through(lambda rate: rate * (1 / self.num_gpus))


@dataclass
class Measuring:
    """Run clusters at several rates; runs in the journal are not made again."""

    spec: WorkloadSpec
    per_instance: int  # requests
    seeds: tuple[int, ...]
    stream: str
    confidence: float
    journal: Journal
    num_runs: int = 0
    known: dict[tuple[str, float], RatedRuns] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner = Runner(Options(form=default_form()), len(self.seeds))
        for key, rate, count, values in self.journal.lines():
            self.known[key, rate] = RatedRuns(count, values)
        self.journal.begin()

    def curve(self, arm: Arm, rates: Sequence[float], show: Callable[[str], None]) -> RateCurve:
        """Return the curve of a cluster at the given rates, or at usual shares of the rate at which it is full."""
        full, is_short = self._full(arm, show)
        points = []
        for wanted in rates or [float(f"{part * full.mean:.3g}") for part in PARTS]:
            show(f"{wanted:g} requests/s")
            points.append(self._point(arm, wanted))
        return RateCurve(arm, full, tuple(points), is_short)

    def _full(self, arm: Arm, show: Callable[[str], None]) -> tuple[Estimate, bool]:
        """Return the requests/s that a full cluster completes, and whether its runs were too short to fill it."""
        rate = FIRST_RATE * arm.config.num_instances
        while rate < MOST_RATE:
            show(f"is it full at {rate:g} requests/s?")
            run = self._run_at(arm, rate)
            while CLEAR < run.kept < KEEPS_UP and run.num_requests * len(self.seeds) < FEWEST:
                run = self._keep(arm, rate, self._made(arm, rate, LONGER * run.num_requests))
            if run.kept < KEEPS_UP:
                leaving = np.array(run.values["requests_per_s"])
                return estimate(leaving, self.confidence), run.is_short(rate)
            rate *= STEP
        raise ConfigError(f"{arm.name} keeps up with {MOST_RATE:g} requests/s; give slower servers")

    def _run_at(self, arm: Arm, rate: float) -> RatedRuns:
        """Return a cluster's runs at a rate, made longer until the warm-up is long compared with serving a request."""
        place = key_of(arm.config), rate
        if place in self.known:
            return self.known[place]
        first = self.per_instance * arm.config.num_instances
        for factor in LENGTHS:
            runs = self._made(arm, rate, factor * first)
            if not runs.is_short(rate):
                break
        return self._keep(arm, rate, runs)

    def _keep(self, arm: Arm, rate: float, runs: RatedRuns) -> RatedRuns:
        """Store the runs of a cluster at a rate, in place of earlier ones, and return them."""
        self.known[key_of(arm.config), rate] = runs
        self.journal.append([key_of(arm.config), rate, *runs])
        return runs

    def _made(self, arm: Arm, rate: float, count: int) -> RatedRuns:
        spec = override(self.spec, aggregate_rate=rate, num_requests=count)
        experiment = Experiment.on(spec, self.seeds, self.stream, NAMES, shared=self.runner)
        window = f"{WARM_UP * count / rate:.9f},{TO_LAST_S}"
        (made,) = experiment.in_window(window).run([arm.config])
        self.num_runs += len(made)
        values = {name: [run.value(name) for run in made] for name in NAMES}
        size = arm.config.block_size_in_tokens
        tables = (experiment.drawn.table(spec, seed, size) for seed in self.seeds)
        values[ARRIVING] = [
            arrivals_per_s(np.asarray(table.arrival_us) / 1e6, WARM_UP * count / rate)
            for table in tables
        ]
        return RatedRuns(count, values)

    def _point(self, arm: Arm, rate: float) -> CurvePoint:
        values = {name: np.array(of, float) for name, of in self._run_at(arm, rate).values.items()}
        gpus = num_gpus(arm.config)
        values["tokens_per_s_user"] = 1000.0 / values["tpot_mean_ms"]
        values["tokens_per_s_gpu"] = values["output_tokens_per_s"] / gpus
        return CurvePoint(
            rate, {name: estimate(of, self.confidence) for name, of in values.items()}
        )


def arrivals_per_s(arrival_s: Float[np.ndarray, " request"], begin_s: float) -> float:
    """Return the mean rate from `begin_s` to the last arrival, requests/s; 0 if none arrives after `begin_s`."""
    inside = arrival_s[arrival_s >= begin_s]
    return len(inside) / (float(inside.max()) - begin_s) if len(inside) > 1 else 0.0


def front(curves: Sequence[RateCurve]) -> list[tuple[RateCurve, CurvePoint]]:
    """Return the points that no other point beats for both user and GPU (Pareto front), the fastest for the user
    first."""
    every = [(curve, point) for curve in curves for point in curve.points]

    def both(point: CurvePoint) -> tuple[float, float]:
        user, gpu = point.figures["tokens_per_s_user"], point.figures["tokens_per_s_gpu"]
        return user.mean, gpu.mean

    best, kept = -np.inf, []
    for curve, point in sorted(every, key=lambda pair: both(pair[1]), reverse=True):
        if both(point)[1] > best:
            best = both(point)[1]
            kept.append((curve, point))
    return kept
