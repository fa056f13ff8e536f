"""Search a strategy's parameters as options of `blis-jax optimize` say: budget, runs, document and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ValidationError

from blis_jax import progress
from blis_jax.cluster.revisions import seen_as
from blis_jax.cluster.setting_values import plain_value
from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import finite
from blis_jax.files.strict_yaml import sentence
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.words import cluster_line
from blis_jax.statistics.intervals import METHOD, estimate
from sweeps.claims.grammar import reported_names
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.options import FOLDER
from sweeps.runs.requests import StudyRequests, requests_of, workload_content, workload_for
from sweeps.search.engines import Engine, make, recommended
from sweeps.search.loop import (
    ExperimentOnLoads,
    SearchRecord,
    Tried,
    best_of,
    load_specs,
    most_runs,
    runs_at,
    search,
)
from sweeps.search.objectives import AT, Valuation, hypervolume, nondominated, reference_point
from sweeps.search.report import findings_of
from sweeps.strategies.arms import policy_files
from sweeps.strategies.file import Strategy, load_strategy, with_instances
from sweeps.strategies.moved import arguments
from sweeps.strategies.parts import Search
from sweeps.strategies.space import Space, space_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.options.outputs import OutputPaths
    from sweeps.optimize import OptimizeOptions


# --- the document: the reference's result schema, and behind it everything that was measured -------


THEIR_METRICS = {  # the reference's names of what it reports of the best point
    "ttft_p99_ms": "ttft_p99_ms",
    "ttft_mean_ms": "ttft_mean_ms",
    "e2e_p99_ms": "e2e_p99_ms",
    "e2e_mean_ms": "e2e_mean_ms",
    "throughput_tps": "tokens_per_sec",
    "dropped": "num_dropped",
    "preemptions": "num_preemptions",
}


@dataclass(frozen=True)
class SearchFrame:
    """The parts of a result other than its points."""

    space: Space
    valuation: Valuation
    seeds: tuple[int, ...]
    stream: str
    baseline: tuple[RunSummary, ...] | None = None


def to_document(
    frame: SearchFrame, tried: Sequence[Tried], place: int | None = None
) -> dict[str, Any]:
    """Return the result file's content: `convergence` has the score of every call, as in BLIS's files.

    `place` is the index of the point that the engine recommends; if None, the point with the lowest score is the best.
    With rungs, a point that lacks runs has `is_estimate`, and is never the best.
    """
    lowest = best_of(tried)
    best = lowest if place is None else tried[place]
    strategy = frame.valuation.strategy
    document: dict[str, Any] = {
        "strategy": strategy.name,
        "cluster": cluster_line({strategy.name: frame.space.base}, frame.space.settings),
        "best_parameters": None,
        "best_score": None,
        "best_metrics": None,
        "cli_args": None,
        "n_calls": len(tried),
        "seeds": list(frame.seeds),
        "convergence": [point.worth.score for point in tried],
    }
    if best is not None:
        metrics = figures(best.runs)
        document |= {
            "best_parameters": dict(zip(frame.space.names, best.point, strict=True)),
            "best_score": best.worth.score,
            "best_metrics": {
                theirs: metrics[ours]["mean"]
                for theirs, ours in THEIR_METRICS.items()
                if ours in metrics
            },
            "cli_args": arguments(frame.space.config_at(best.point)),
            "files": policy_files(frame.space.config_at(best.point)),
            "best_call": list(tried).index(best) if place is None else place,
            "best_figures": by_class(metrics),
            "success": _success(frame, best),
        }
    if place is not None and lowest is not None:
        document |= {
            "is_recommended": True,
            "lowest_score": lowest.worth.score,
            "lowest_call": list(tried).index(lowest),
        }
    document |= {
        "search": strategy.search.model_dump(),
        "rng": frame.stream,
        "objectives": [entry.model_dump(exclude_none=True) for entry in strategy.objectives],
        "constraints": [entry.model_dump(exclude_none=True) for entry in strategy.constraints],
        "intervals": METHOD.replace(", paired by seed", ""),
        "failures": failures(tried),
        "num_broken_invariants": sum(
            r.num_broken_invariants for point in tried for r in point.runs
        ),
        "points": [_point(frame, point) for point in tried],
    }
    if len(strategy.objectives) > 1:
        document["front"] = front(frame, tried)
    return document


def figures(runs: Sequence[RunSummary]) -> dict[str, dict[str, Any]]:
    """Return by metric the mean, the 95 % interval and the value of each seed; None for values that do not exist."""
    names = runs[0].metrics if runs and all(run.is_whole for run in runs) else ()
    by_metric = {}
    for name in names:
        values = np.array([run.metrics[name] for run in runs])
        interval = estimate(values)
        by_metric[name] = {
            "mean": finite(interval.mean),
            "low": finite(interval.low),
            "high": finite(interval.high),
            "per_seed": [finite(value) for value in values.tolist()],
        }
    return by_metric


def by_class(metrics: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Group metrics by SLO class; those of all requests and of the whole run come under `all`."""
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in metrics.items():
        plain, at, load = name.partition(AT)
        metric, slo_class = lookup(plain)
        grouped.setdefault(slo_class or "all", {})[metric.name + at + load] = value
    return grouped


def failures(tried: Sequence[Tried]) -> dict[str, int]:
    """Return the number of points that failed, by outcome."""
    names = [name for point in tried for name in point.worth.failures]
    return {name: names.count(name) for name in sorted(set(names))}


def front(frame: SearchFrame, tried: Sequence[Tried]) -> dict[str, Any]:
    """Return the calls of points without penalty on the Pareto front, and the hypervolume after each call."""
    kept = [place for place, point in enumerate(tried) if point.worth.is_feasible]
    metrics = [goal.metric for goal in frame.valuation.goals]
    signs = [goal.sign for goal in frame.valuation.goals]
    if not kept:
        return {"calls": [], "metrics": metrics, "hypervolume": 0.0}
    objectives = np.array([tried[place].worth.objectives for place in kept])
    reference = reference_point(objectives)
    volumes, seen = [], 0
    for place in range(len(tried)):
        seen += seen < len(kept) and kept[seen] == place
        volumes.append(hypervolume(objectives[:seen], reference))
    on_front = nondominated(objectives)
    return {
        "calls": [place for place, is_on in zip(kept, on_front, strict=True) if is_on],
        "metrics": metrics,
        "reference_point": [s * value for s, value in zip(signs, reference.tolist(), strict=True)],
        "hypervolume": volumes[-1],
        "hypervolume_by_call": volumes,
    }


def _point(frame: SearchFrame, tried: Tried) -> dict[str, Any]:
    return {
        "parameters": dict(zip(frame.space.names, tried.point, strict=True)),
        "score": tried.worth.score,
        "penalties": dict(tried.worth.penalties),
        "is_feasible": tried.worth.is_feasible,
        "failures": list(tried.worth.failures),
        **({"is_estimate": True} if _is_estimate(frame, tried) else {}),
        "outcomes": [run.outcome.name for run in tried.runs],
        "figures": by_class(figures(tried.runs)),
    }


def _is_estimate(frame: SearchFrame, tried: Tried) -> bool:
    """Return whether the score is an estimate, because the point was not run on all seeds."""
    return not tried.worth.failures and len(tried.runs) < len(frame.seeds)


def _success(frame: SearchFrame, best: Tried) -> list[dict[str, Any]]:
    """Return every success criterion with the best point's value."""
    reached = figures(best.runs)
    before = figures(frame.baseline) if frame.baseline is not None else {}
    verdicts = []
    for criterion in frame.valuation.strategy.success_criteria:
        claim = criterion.claim
        value = reached[claim.metric]["mean"]
        entry: dict[str, Any] = criterion.model_dump(exclude_none=True)
        if claim.is_change:
            base = before.get(claim.metric, {}).get("mean")
            entry["baseline"] = base
            has_change = value is not None and base is not None and base != 0
            value = 100 * (value / base - 1) if has_change else None
        is_met = value is not None and claim.holds(value)
        verdicts.append({**entry, "reached": value, "is_met": is_met})
    return verdicts


# --- the command ----------------------------------------------------------------------------------


def search_parameters(options: OptimizeOptions) -> int:
    """Search the parameters that the options describe, and write and print the result; return the exit code."""
    strategy = _strategy(options)
    paths = outputs.outputs_of(options, f"{FOLDER}/{options.stem}.json", beside=(".jsonl",))
    space = space_of(strategy).served(options.trace is not None, options.signals)
    valuation, loads = Valuation(strategy, has_loads=True), load_specs(strategy)
    requests = _requests(options, strategy, space, valuation)
    engine, baseline = make(space, strategy.search), _baseline(strategy, options.signals)
    names = (*valuation.names, *reported_names(requests.source))
    groups = [plain_value(space.base.instances)] if space.base.instances else []
    content = {
        **_content(strategy), **requests.content(), "instances": groups,
        **({} if space.signals is None else {"signals": space.signals}),
        "loads": {name: workload_content(load) for name, load in loads.items()},
        **({} if requests.trace is None else {"profile": space.base.profile}),
    }  # fmt: skip
    record = SearchRecord(paths.beside(".jsonl"), content)
    with record.held(options.resume):
        batch = strategy.search.batch
        main_load = Experiment(requests, names, targets_of(strategy), configs_per_batch=batch)
        experiment = ExperimentOnLoads(main_load, valuation, loads)
        frame = SearchFrame(space, valuation, requests.seeds, requests.stream)
        tried = _searched(options.command, frame, engine, experiment, record)
        if baseline is not None:
            with progress.phase("simulating the baseline"):
                frame = dataclasses.replace(frame, baseline=experiment.run([baseline])[0])
        place = recommended(engine, [point.told() for point in tried], most_runs(tried))
        document = to_document(frame, tried, place)
        if requests.trace is not None:
            document["trace"] = requests.trace.about()
        return _written(options, document, paths)


# --- input ----------------------------------------------------------------------------------------


def _strategy(options: OptimizeOptions) -> Strategy:
    """Return the strategy with values replaced by the command's options."""
    strategy = options.load()
    values = options.given()
    budget = {name: values[name] for name in Search.model_fields if name in values}
    try:
        search = Search.model_validate({**strategy.search.model_dump(), **budget})
    except ValidationError as error:
        raise ConfigError(f"--{sentence(error).replace('_', '-', 1)}") from None
    seeds = given_seeds(options, options.stream) or strategy.seeds
    strategy = strategy.model_copy(update={"search": search, "seeds": seeds})
    return strategy if options.instances is None else with_instances(strategy, options.instances)


def _requests(
    options: OptimizeOptions, strategy: Strategy, space: Space, valuation: Valuation
) -> StudyRequests:
    requests = requests_of(
        options,
        options.command,
        lambda: workload_for(
            options.workload,
            [strategy],
            options.num_requests or space.num_requests,
            rate=options.rate,
        ),
        [space.base],
        strategy.seeds,
    )
    if requests.trace is not None:
        if strategy.loads:
            raise strategy.refuse("loads", "a trace has one load; leave them out, or --trace")
        requests.trace.check_classes(valuation.names)
    return requests


def _content(strategy: Strategy) -> dict[str, Any]:
    """Return the parts of a strategy that decide its points and their scores."""
    texts = {"name", "description", "prior_findings", "deviations", "points", "source", "folder"}
    texts |= {"baseline", "parameter_paths"}
    return strategy.model_dump(mode="json", exclude=texts)


# --- the search -----------------------------------------------------------------------------------


def _searched(
    command: str,
    frame: SearchFrame,
    engine: Engine,
    experiment: ExperimentOnLoads,
    record: SearchRecord,
) -> list[Tried]:
    budget = frame.valuation.strategy.search

    def show(tried: Sequence[Tried]) -> None:
        best = best_of(tried)
        words = f"best score {best.worth.score:.6g}" if best is not None else "all points failed"
        work.show(sum(len(point.runs) for point in tried) // len(frame.seeds), words)

    searching = progress.phase("searching", budget.calls, "points")
    with cli.resumable(command, record.path), searching as work:
        run = runs_at(frame.space, experiment)
        return search(engine, frame.valuation, run, record, show, len(frame.seeds))


def _baseline(strategy: Strategy, signals: str | None) -> ClusterConfig | None:
    """Return the baseline's configuration if a success criterion is a change against it, else None."""
    if all(entry.change_percent is None for entry in strategy.success_criteria):
        return None
    try:
        return seen_as(space_of(load_strategy(strategy.baseline)).base, signals)
    except ConfigError as error:
        raise strategy.refuse("baseline", str(error)) from None


def _written(options: OptimizeOptions, document: dict[str, Any], paths: OutputPaths) -> int:
    """Write the files, print the findings, and return the exit code."""
    findings = findings_of(document, paths.result)
    document["answer"] = findings_of(document).answer.to_json()
    document["picture"] = findings.pictures[0].to_json() if findings.pictures else None
    files = outputs.study_files(findings, document, paths)
    outputs.show(findings, lambda: outputs.write_files(files), options)
    if document["best_score"] is None:
        cli.say(options.command, "every point failed; see the outcomes in the result")
        return cli.EXIT_UNSUPPORTED
    return 0
