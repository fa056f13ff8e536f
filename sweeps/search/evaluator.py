"""Answers to requests: the work of `blis-jax evaluate`, without its command line."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from blis_jax import lazy
from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.revisions import served
from blis_jax.cluster.setting_values import plain_value
from blis_jax.commands.options import trace_flags
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import plain
from blis_jax.files.python_files import is_file
from blis_jax.metrics.measure import DEFAULT_TARGETS
from blis_jax.metrics.reference import class_code
from blis_jax.policies.reading import NotAsDataError
from blis_jax.statistics.intervals import METHOD, estimate
from blis_jax.traces.source import STREAM, TraceSource
from sweeps.claims.grammar import known_metric, our_name, reported_names
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.measured import failure_of, no_figure, versions
from sweeps.runs.requests import StudyRequests, check_seeds, list_workloads, workload_from
from sweeps.search.command import by_class
from sweeps.search.objectives import Runs, Valuation
from sweeps.search.request_schema import VERSION, Answer, Request, parse_request
from sweeps.strategies.arms import arm_of, configured
from sweeps.strategies.file import Strategy, list_library, load_strategy, parse_strategy
from sweeps.strategies.moved import arguments
from sweeps.strategies.space import Space, space_of

if TYPE_CHECKING:
    from blis_jax.runs import alternatives
    from blis_jax.workload.spec import WorkloadSpec
else:  # it loads JAX, for which no refusal waits
    alternatives = lazy.Module("blis_jax.runs.alternatives")

MOST_EXPERIMENTS = 8  # workloads × seeds × metrics whose requests are kept
MOST_CONFIGS = 16  # that are run in one compiled call
USUAL_SEEDS = (42, 43, 44)  # of an arm without a strategy file


@dataclass(frozen=True)
class _Job:
    """A request that has been checked, with its work."""

    request: Request
    config: ClusterConfig
    space: Space | None  # of a strategy of our files
    valuation: Valuation | None
    experiment: Experiment  # keeps all metrics that are computed
    names: tuple[str, ...]  # of the metrics that are answered
    remarks: tuple[str, ...]


class Evaluator:
    """Answer requests; cache drawn requests and compiled programs for later ones.

    Routers of users' files share one compiled engine where possible; with `compiles` each router is compiled.
    """

    def __init__(self, compiles: bool = False) -> None:
        self.compiles = compiles
        self.experiments: dict[str, Experiment] = {}

    def answers(self, documents: Sequence[Any], wheres: Sequence[str]) -> list[dict[str, Any]]:
        """Return an answer for each request, in order; `wheres` name the requests in error messages."""
        answer_by_place: dict[int, dict[str, Any]] = {}
        groups: dict[str, list[tuple[int, _Job]]] = {}
        for place, (document, where) in enumerate(zip(documents, wheres, strict=True)):
            try:
                job = _job(document, where)
                groups.setdefault(_key(job), []).append((place, job))
            except ConfigError as error:
                answer_by_place[place] = refusal(document, str(error))
        for key, members in groups.items():
            try:
                experiment = self._experiment(key, members[0][1], len(members))
                for at in range(0, len(members), MOST_CONFIGS):
                    part = members[at : at + MOST_CONFIGS]
                    said = [self._handed_in(experiment, job.config) for _, job in part]
                    done = zip(part, said, _run(experiment, part), strict=True)
                    for (place, job), remarks, runs in done:
                        answer_by_place[place] = _answer(job, runs, remarks)
            except ConfigError as error:  # requests that cannot be drawn
                for place, _ in members:
                    answer_by_place.setdefault(
                        place, refusal(documents[place], f"{wheres[place]}: {error}")
                    )
        return [answer_by_place[place] for place in range(len(documents))]

    def _experiment(self, key: str, job: _Job, count: int) -> Experiment:
        experiment = self.experiments.pop(key, None)
        if experiment is None:
            experiment = replace(job.experiment, configs_per_batch=min(count, MOST_CONFIGS))
        self.experiments[key] = experiment  # the latest last
        if len(self.experiments) > MOST_EXPERIMENTS:
            del self.experiments[next(iter(self.experiments))]
        return experiment

    def _handed_in(self, experiment: Experiment, config: ClusterConfig) -> tuple[str, ...]:
        """Register a user's router as a table of operations; return remarks if it is compiled instead."""
        experiment.handed_in.pop(config, None)  # a file may be written anew
        if self.compiles or not is_file(config.routing_policy):
            return ()
        try:
            experiment.handed_in[config] = alternatives.router_as_table(
                config, experiment.runner.options
            )
        except NotAsDataError as error:
            return (f"compiled: {error}",)
        return ()


def _run(experiment: Experiment, members: Sequence[tuple[int, _Job]]) -> list[Runs]:
    return experiment.run([job.config for _, job in members])


def _key(job: _Job) -> str:
    of, requests = job.experiment, job.experiment.requests
    _ = of.measure  # refuses windows that leave nothing
    content = [requests.source.content(), requests.seeds, requests.stream]
    return json.dumps([*content, of.names, of.targets], sort_keys=True, default=str)


def _job(document: object, where: str) -> _Job:
    """Return the checked work of a request; raise all errors that the request can cause."""
    request = parse_request(document, where)
    config, space, remarks = _configured(request, where)
    strategy = space.strategy if space is not None else None
    requests = _requests_of(request, config, space, where)
    valuation = Valuation(strategy) if strategy is not None else None
    of_score = valuation.names if valuation is not None else ()
    usual = dict.fromkeys((*of_score, *reported_names(requests.source)))
    names = _metrics(request, where) or tuple(usual)
    kept = tuple(dict.fromkeys((*_ours(names), *of_score)))
    experiment = Experiment(requests, kept, _targets(request, strategy, where))
    return _Job(request, config, space, valuation, experiment, names, tuple(remarks))


def _requests_of(
    request: Request, config: ClusterConfig, space: Space | None, where: str
) -> StudyRequests:
    usual = space.strategy.seeds if space is not None else USUAL_SEEDS
    try:
        if request.trace is not None:
            trace = _trace(request.trace.model_dump_json(exclude_none=True, by_alias=True))
            if space is not None:
                trace.check_classes(Valuation(space.strategy).names)
            seeds = trace.seeds(request.seeds, [config], usual)
            return StudyRequests(trace, seeds, STREAM, request.trace.trace)
        seeds = tuple(request.seeds or usual)
        check_seeds(seeds, request.rng)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    spec, name = _workload(request, space, where)
    return StudyRequests(spec, seeds, request.rng, name)


def _trace(keys: str) -> TraceSource:
    """Return the trace that a request's keys describe, as JSON."""
    options = json.loads(keys)
    file = Path(options["trace"])
    changed = file.stat().st_mtime_ns if file.exists() else 0  # a file may be written anew
    return _trace_once(keys, changed)


@functools.lru_cache(8)
def _trace_once(keys: str, changed: int) -> TraceSource:
    source = trace_flags.study_source(
        trace_flags.StudyTrace.of(json.loads(keys)), "sweeps.evaluate", is_quiet=True
    )
    assert source is not None
    return source


def _configured(request: Request, where: str) -> tuple[ClusterConfig, Space | None, list[str]]:
    try:
        if request.arm is not None:
            arm = arm_of(request.arm)
            space = space_of(arm.strategy) if arm.strategy is not None else None
            return served(arm.config, is_real=False), space, []
        space = _space(request.strategy)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    try:
        config = configured(where, space, request.point, request.parameters, request.settings)
    except (TypeError, AttributeError, OverflowError):  # a list, say, where a number belongs
        raise ConfigError(f"{where}: settings: a value has the wrong type; see --schema") from None
    return served(config, is_real=False), space, _out_of_range(request, space)


def _space(strategy: object) -> Space:
    """Return the space of a strategy given by name, file or content; files are read again, as they may have changed."""
    if not isinstance(strategy, str):
        return _inline(yaml.safe_dump(strategy, sort_keys=False))
    return (
        _of_library(strategy) if strategy in list_library() else space_of(load_strategy(strategy))
    )


@functools.lru_cache(64)
def _of_library(name: str) -> Space:
    return space_of(load_strategy(name))


@functools.lru_cache(64)
def _inline(text: str) -> Space:
    return space_of(parse_strategy(text, "strategy"))


@functools.lru_cache(64)
def _built_in(name: str, num_requests: int | None) -> WorkloadSpec:
    return workload_from(name, num_requests=num_requests)


def _out_of_range(request: Request, space: Space) -> list[str]:
    remarks = []
    for dimension in space.dimensions:
        value = request.parameters.get(dimension.name)
        if value is None or dimension.kind == "categorical":
            continue
        if not dimension.low <= float(value) <= dimension.high:
            remarks.append(
                f"parameters.{dimension.name}: {value} is outside the strategy's range, "
                f"{dimension.low:g} to {dimension.high:g}"
            )
    return remarks


def _workload(request: Request, space: Space | None, where: str) -> tuple[WorkloadSpec, str]:
    strategy = space.strategy if space is not None else None
    count = request.num_requests or (space.num_requests if space is not None else None)
    its_strategy = strategy if request.workload is None else None
    workload = its_strategy.workload if its_strategy is not None else request.workload or "mixed"
    try:
        if isinstance(workload, str) and workload in list_workloads():
            spec = _built_in(workload, count)
        elif its_strategy is not None:
            spec = workload_from(
                workload, f"{its_strategy.source}: workload", its_strategy.folder, count
            )
        else:
            spec = workload_from(workload, num_requests=count)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return spec, workload if isinstance(workload, str) else "inline"


def _metrics(request: Request, where: str) -> tuple[str, ...]:
    for place, name in enumerate(request.metrics or ()):
        try:
            known_metric(name)
        except ConfigError as error:
            raise ConfigError(f"{where}: metrics[{place}]: {error}") from None
    return tuple(dict.fromkeys(request.metrics or ()))


def _targets(
    request: Request, strategy: Strategy | None, where: str
) -> Mapping[str, Mapping[str, float]]:
    if request.targets is None:
        return targets_of(strategy) if strategy is not None else DEFAULT_TARGETS
    for name in request.targets:
        try:
            class_code(name)
        except ConfigError as error:
            raise ConfigError(f"{where}: targets.{name}: {error}") from None
    return {name: limits.model_dump(exclude_none=True) for name, limits in request.targets.items()}


# --- answers --------------------------------------------------------------------------------------


def refusal(document: object, error: str) -> dict[str, Any]:
    """Return the answer to a request that is refused."""
    request_id = document.get("id") if isinstance(document, dict) else None
    known = (
        request_id
        if isinstance(request_id, str | int) and not isinstance(request_id, bool)
        else None
    )
    return Answer.model_validate({"id": known, "error": error}).model_dump(mode="json")


def _answer(job: _Job, runs: Runs, remarks: Sequence[str] = ()) -> dict[str, Any]:
    """Return the answer to a request, checked against the published schema."""
    figures = {name: _figure(name, runs) for name in job.names}
    ours = dict(zip(_ours(job.names), figures.values(), strict=True))
    requests = job.experiment.requests
    outcomes = [
        {"seed": seed, "outcome": run.outcome.name}
        for seed, run in zip(requests.seeds, runs, strict=True)
    ]
    content = {
        "version": VERSION,
        "id": job.request.id,
        "metrics": figures,
        "classes": by_class(ours),
        **_worth(job, runs),
        "outcomes": outcomes,
        "num_broken_invariants": sum(run.num_broken_invariants for run in runs),
        "strategy": job.space.strategy.name if job.space is not None else None,
        "workload": requests.name,
        "num_requests": requests.source.num_requests,
        "seeds": list(requests.seeds),
        "rng": requests.stream,
        "targets": {name: dict(limits) for name, limits in job.experiment.targets.items()},
        "intervals": METHOD.replace(", paired by seed", ""),
        "remarks": [*job.remarks, *remarks],
        "configuration": {name: plain_value(getattr(job.config, name)) for name in FIELDS},
        "cli_args": arguments(job.config),
        "versions": versions() | {"profile": job.config.profile},
    }
    return Answer.model_validate(plain(content)).model_dump(mode="json")


def _ours(names: Sequence[str]) -> tuple[str, ...]:
    return tuple(our_name(name) for name in names)


def _figure(name: str, runs: Runs) -> dict[str, Any]:
    """Return a metric's figure; mean and interval only if every seed has a value, as a mean of some would flatter."""
    values = np.array([run.value(our_name(name)) for run in runs], np.float64)
    is_whole = bool(np.isfinite(values).all())
    whole = estimate(values if is_whole else values[:0])
    return {
        "unit": known_metric(name).unit,
        "mean": whole.mean,
        "low": whole.low,
        "high": whole.high,
        "per_seed": values.tolist(),
    }


def _worth(job: _Job, runs: Runs) -> dict[str, Any]:
    """Return score, objectives, penalties and failure."""
    failure = failure_of(job.experiment.requests.seeds, runs)
    score, objectives, penalties = None, None, None
    if job.valuation is not None:
        worth = job.valuation.worth(runs)
        score = worth.score
        if not worth.failures:
            goals = job.valuation.goals
            objectives = {
                goal.metric: goal.sign * value
                for goal, value in zip(goals, worth.objectives, strict=True)
            }
            penalties = dict(worth.penalties)
        elif failure is None:
            failure = no_figure(*_without_figure(job, job.valuation, runs))
    return {
        "score": score,
        "objectives": objectives,
        "penalties": penalties,
        "failure": failure.to_json() if failure is not None else None,
    }


def _without_figure(job: _Job, valuation: Valuation, runs: Runs) -> tuple[list[int], list[str]]:
    """Return the seeds without a value, and the metrics concerned, that an objective or a constraint needs."""
    wanted = [goal.metric for goal in valuation.goals] + valuation.limits
    lacking = [
        (seed, name)
        for seed, run in zip(job.experiment.requests.seeds, runs, strict=True)
        for name in wanted
        if run.metrics[name] != run.metrics[name]
    ]
    seeds = dict.fromkeys(seed for seed, _ in lacking)
    return list(seeds), list(dict.fromkeys(name for _, name in lacking))
