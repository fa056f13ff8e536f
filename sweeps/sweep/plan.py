"""The plan of a sweep: strategies × a grid of settings, each on the same seeds."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.calibrate.posterior import load
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import draws
from blis_jax.commands.options import outputs
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files.atomic_write import fingerprint
from blis_jax.metrics.measure import DEFAULT_TARGETS, read_targets
from blis_jax.policies.seeds import BY_WORKLOAD
from blis_jax.traces.source import STREAM, TraceSource
from blis_jax.workload.revised_spec import RevisedWorkload
from blis_jax.workload.source import RequestSource
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.runs.axes import StudyAxis, axis_of, is_of_workload, setting_of, values_of
from sweeps.runs.experiment import Experiment, Targets
from sweeps.runs.requests import (
    WORKLOAD_PREFIX,
    StudyRequests,
    check_rate,
    runs_of,
    trace_of,
    workload_from,
)
from sweeps.strategies.arms import Arm, arm_of, as_served, on_server
from sweeps.strategies.file import Strategy
from sweeps.strategies.moved import replaced, values_for_hash

if TYPE_CHECKING:
    from blis_jax.commands.options.outputs import OutputPaths
    from blis_jax.statistics.sequential import StoppingRule
    from sweeps.sweep.command import SweepOptions

DEFAULT_STRATEGIES = ("baseline", "it08_opt")
OF_ARMS = {  # keys of a strategy file that say what is run
    "name", "description", "mechanism", "fixed_args", "source", "folder", "parameter_paths",
}  # fmt: skip
RATE, NUM_REQUESTS = "workload.aggregate_rate", "workload.num_requests"
MOST_ROWS = 1_000_000


@dataclass(frozen=True)
class SweepPoint:
    """One strategy at one place of the grid."""

    strategy: str
    place: Mapping[str, Any]  # by axis
    config: ClusterConfig
    spec: RequestSource

    @property
    def fingerprint(self) -> str:
        """Return a hash that is equal for two points with the same runs."""
        content = [values_for_hash(self.config), self.spec.content()]
        if draws(self.config):  # earlier versions gave random policies the same draws on every seed
            content.append({"policy_seeds": BY_WORKLOAD})
        return fingerprint(content)


@dataclass(frozen=True)
class SweepPlan:
    """All inputs that a sweep's numbers depend on, except the version."""

    experiment: Experiment
    strategies: tuple[Arm, ...]
    axes: tuple[StudyAxis, ...]

    @property
    def requests(self) -> StudyRequests:
        """Return the requests that every point serves, before the grid changes them."""
        return self.experiment.requests

    def on(self, seeds: Iterable[int]) -> SweepPlan:
        """Return the same plan on other seeds."""
        requests = replace(self.requests, seeds=tuple(seeds))
        return replace(self, experiment=replace(self.experiment, requests=requests))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the numbers of strategies, of values of each axis, and of seeds."""
        return (
            len(self.strategies),
            *(len(axis.values) for axis in self.axes),
            len(self.requests.seeds),
        )

    @property
    def label_by_place(self) -> bool:
        """Return whether the places of the grid are compared, because there is only one strategy."""
        return len(self.strategies) == 1 and len(self.points) > 1

    def labels(self, point: SweepPoint) -> tuple[str, str]:
        """Return a point's name, and its place in the grid, such as `workload.aggregate_rate=1000`."""
        where = ", ".join(f"{name}={value}" for name, value in point.place.items())
        return (where, "") if self.label_by_place else (point.strategy, where)

    def reference_of(self, index: int) -> int:
        """Return the index of the point that a point is compared with; a reference's own index.

        The reference is the first strategy at the same place; with one strategy, its first place.
        """
        return 0 if self.label_by_place else index % (len(self.points) // len(self.strategies))

    @cached_property
    def points(self) -> tuple[SweepPoint, ...]:
        """Return every strategy at every place, the last axis varying fastest."""
        places = list(itertools.product(*(axis.values for axis in self.axes)))
        names = [axis.name for axis in self.axes]
        return tuple(
            _point(strategy, self.requests.source, dict(zip(names, place, strict=True)))
            for strategy in self.strategies
            for place in places
        )


def _point(strategy: Arm, spec: RequestSource, place: Mapping[str, Any]) -> SweepPoint:
    of_cluster = {name: value for name, value in place.items() if not is_of_workload(name)}
    for name, value in place.items():
        if is_of_workload(name):
            spec = with_value(spec, name, value)
    return SweepPoint(strategy.name, place, replaced(strategy.config, of_cluster), spec)


def make_plan(
    workload: str = "mixed",
    strategies: Sequence[str] = DEFAULT_STRATEGIES,
    settings: Sequence[str] = (),
    grid: Sequence[str] = (),
    rates: str = "",
    seeds: Sequence[int] | Callable[[Sequence[ClusterConfig]], Sequence[int]] = range(256),
    trace: TraceSource | None = None,
    targets: Targets = DEFAULT_TARGETS,
    window: str | None = None,
    fit: str | None = None,
) -> SweepPlan:
    """Make a plan from the texts of the command line: `settings` KEY=VALUE, `grid` KEY=VALUES.

    Args:
        workload: the workload's name or file; with a trace, the trace's name.
        strategies: texts of arms.
        settings: texts KEY=VALUE.
        grid: texts KEY=VALUES.
        rates: rates of arrivals, requests/s.
        seeds: the numbers of the runs, or a function that returns them for the configurations.
        trace: the trace that replaces the workload.
        targets: SLO targets, ms by class.
        window: the measured arrivals, see `Experiment`.
        fit: a calibration, whose coefficients and server all strategies get.

    Raises:
        ConfigError: a text cannot be read, or the runs are too many.
    """
    spec: RequestSource = workload_from(workload, "--workload") if trace is None else trace
    axes = [axis_of(text) for text in grid]
    fixed = [setting_of(text) for text in settings]
    if rates:
        values = values_of(RATE, rates)
        if len(values) == 1:
            fixed.append((RATE, values[0]))
        else:
            axes.append(StudyAxis(RATE, values))
    names = [name for name, _ in fixed] + [axis.name for axis in axes]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{name} is given twice; give all its values at once, with commas")
    settings_of_all = {key: val for key, val in fixed if not is_of_workload(key)}
    chosen = _strategies(strategies, settings_of_all, trace is not None, fit)
    for name, value in fixed:
        if is_of_workload(name):
            spec = with_value(spec, name, value)
    numbers = seeds([arm.config for arm in chosen]) if callable(seeds) else seeds
    own = "reference" if isinstance(spec, RevisedWorkload) else "jax"
    stream = STREAM if trace is not None else own
    requests = StudyRequests(spec, tuple(numbers), stream, workload)
    return _checked(SweepPlan(Experiment(requests, (), targets, window), chosen, tuple(axes)))


def _checked(plan: SweepPlan) -> SweepPlan:
    """Return the plan; refuse one with too many runs, without runs, or with metrics that cannot be measured."""
    if math.prod(plan.shape) > MOST_ROWS:
        raise ConfigError(
            f"the grid has {math.prod(plan.shape)} runs, allowed are {MOST_ROWS}; "
            "give fewer values or fewer seeds, or split it into several sweeps"
        )
    if not plan.points:
        raise ConfigError("the grid is empty")
    for point in plan.points:
        plan.experiment.measure.check(point.spec)
    return plan


def _strategies(
    texts: Sequence[str], settings: Mapping[str, Any], is_real: bool, fit: str | None
) -> tuple[Arm, ...]:
    arms = as_served([_swept(text) for text in texts], is_real or fit is not None)
    arms = arms if fit is None else on_server(arms, load(Path(fit)))
    changed = (replace(arm, config=replaced(arm.config, settings)) for arm in arms)
    chosen = as_served(changed, is_real)
    labels = [strategy.name for strategy in chosen]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"strategy {label!r} is given twice; give each its own name")
    return chosen


def _swept(text: str) -> Arm:
    """Return the arm of a text; a file's name is taken from the file, and its part about searches is not used."""
    arm = arm_of(text)
    if arm.strategy is None or not text.endswith((".yaml", ".yml")):
        return arm
    keys = [key for key in Strategy.model_fields if key in arm.strategy.model_fields_set - OF_ARMS]
    if keys:
        said = f"{arm.strategy.source}: {', '.join(keys)}: not used here; the mechanism is run"
        warnings.warn(said, ConfigWarning, stacklevel=2)
    return replace(arm, name=arm.strategy.name) if arm.name == text else arm


def with_value(spec: RequestSource, path: str, value: object) -> WorkloadSpec:
    """Return the workload with one number replaced; `path` names clients by id or index.

    For instance `workload.aggregate_rate` or `workload.clients.critical.arrival.cv`.
    """
    if not isinstance(spec, WorkloadSpec):
        raise ConfigError(f"{path} has no meaning with --trace; its own options change a trace")
    if path == RATE:
        check_rate(spec, RATE)
    document = spec.model_dump()
    steps = path.removeprefix(WORKLOAD_PREFIX).split(".")
    at: Any = document
    for depth, step in enumerate(steps):
        key = _key(at, step)
        if key is None:
            below = ", ".join(_names(at)) or "nothing below it"
            where = ".".join(["workload", *steps[:depth]])
            raise ConfigError(f"{path} does not exist; {where} has {below}")
        if depth == len(steps) - 1:
            if isinstance(at[key], dict | list | tuple):
                raise ConfigError(f"{path} is not one value but has {', '.join(_names(at[key]))}")
            at[key] = value
        else:
            if isinstance(at[key], tuple):
                at[key] = list(at[key])
            at = at[key]
    try:
        return override(spec, **{steps[0]: document[steps[0]]})
    except ConfigError as error:
        raise ConfigError(f"{path}={value}: {error}") from None


def _key(at: object, step: str) -> Any:
    if isinstance(at, dict):
        return step if step in at else None
    if isinstance(at, list):
        ids = [entry.get("id") if isinstance(entry, dict) else None for entry in at]
        if step in ids:
            return ids.index(step)
        return int(step) if step.isdecimal() and int(step) < len(at) else None
    return None


def _names(at: object) -> list[str]:
    if isinstance(at, dict):
        return [str(key) for key in at]
    if isinstance(at, list | tuple):
        return [str((isinstance(e, dict) and e.get("id")) or index) for index, e in enumerate(at)]
    return []


def identity(plan: SweepPlan, clock: str) -> str:
    """Return a hash that is equal for two sweeps with the same rows, measured in the same way."""
    content = [
        [point.fingerprint for point in plan.points],
        list(plan.requests.seeds),
        plan.experiment.measure.texts(),
        clock,
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


# --- input ----------------------------------------------------------------------------------------


def plan_of(options: SweepOptions, rule: StoppingRule | None) -> SweepPlan:
    """Return the plan that the options describe, checked without starting JAX."""
    groups = [] if options.instances is None else [f"instances={options.instances}"]
    counts = [] if options.num_requests is None else [f"{NUM_REQUESTS}={options.num_requests}"]
    trace = trace_of(options, options.command)

    def seeds(configs: Sequence[ClusterConfig]) -> Sequence[int]:
        return runs_of(options, options.command, trace, configs, options.usual_seeds, rule)[0]

    return make_plan(
        workload=options.workload or options.trace or "mixed",
        strategies=(*options.arms, *options.strategy) or DEFAULT_STRATEGIES,
        settings=(*options.set, *groups, *counts),
        grid=options.grid,
        rates=options.rate or "",
        seeds=seeds,
        trace=trace,
        targets=read_targets(options.targets),
        window=options.window,
        fit=options.coefficients_from,
    )


def outputs_of_sweep(options: SweepOptions, plan: SweepPlan) -> OutputPaths:
    """Return the checked paths; the default ones may already hold this very sweep, since nothing would be lost."""
    is_default = options.output is None and options.figure is None
    paths = outputs.outputs_of(
        options,
        options.usual_output,
        (".zarr", ".nc"),
        is_kept=lambda path: is_default and _holds(path, plan, options.clock),
    )
    if paths.result.suffix == ".nc" and importlib.util.find_spec("h5netcdf") is None:
        raise ConfigError(
            f"--output: {str(paths.result)!r} is NetCDF, which needs the optional group: "
            "pip install 'blis-jax[export]'; or give a name that ends in .zarr"
        )
    return paths


def _holds(output: Path, plan: SweepPlan, clock: str) -> bool:
    """Return whether a Zarr store holds this very sweep, complete."""
    try:
        attributes = json.loads((output / "zarr.json").read_text())["attributes"]
        counts = json.loads(attributes["outcome_counts"])
        same = attributes["sweep"] == identity(plan, clock)
        return same and "not_run" not in counts
    except (OSError, ValueError, KeyError, TypeError):
        return False
