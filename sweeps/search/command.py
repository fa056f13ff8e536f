"""Search the parameters of a strategy as options of `sweeps.optimize` say: its budget, its runs, and its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from blis_jax import progress
from blis_jax.cluster.setting_values import plain_value
from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.files.strict_yaml import sentence
from sweeps.claims.metrics import reported_names
from sweeps.runs.experiment import Experiment, targets_of
from sweeps.runs.options import FOLDER
from sweeps.runs.requests import requests_of, workload_for
from sweeps.runs.workloads import workload_content
from sweeps.search.engines import make, recommended
from sweeps.search.loop import ExperimentOnLoads, SearchRecord, load_specs, runs_at, search
from sweeps.search.objectives import Valuation
from sweeps.search.racing import best_of, most_runs
from sweeps.search.report import findings_of
from sweeps.search.result import SearchFrame, to_document
from sweeps.strategies.file import load_strategy, with_instances
from sweeps.strategies.parts import Search
from sweeps.strategies.space import space_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.options.outputs import OutputPaths
    from sweeps.optimize import OptimizeOptions
    from sweeps.runs.requests import StudyRequests
    from sweeps.search.engines import Engine
    from sweeps.search.racing import Tried
    from sweeps.strategies.file import Strategy
    from sweeps.strategies.space import Space


def search_parameters(options: OptimizeOptions) -> int:
    """Search for what the options describe, and write and print it; return the exit code."""
    strategy = _strategy(options)
    paths = outputs.outputs_of(options, f"{FOLDER}/{options.stem}.json", beside=(".jsonl",))
    space = space_of(strategy).served(options.trace is not None)
    valuation, loads = Valuation(strategy, has_loads=True), load_specs(strategy)
    requests = _requests(options, strategy, space, valuation)
    engine, baseline = make(space, strategy.search), _baseline(strategy)
    names = (*valuation.names, *reported_names(requests.source))
    groups = [plain_value(space.base.instances)] if space.base.instances else []
    content = {
        **_content(strategy), **requests.content(), "instances": groups,
        "loads": {name: workload_content(one) for name, one in loads.items()},
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
        place = recommended(engine, [one.told() for one in tried], most_runs(tried))
        document = to_document(frame, tried, place)
        if requests.trace is not None:
            document["trace"] = requests.trace.about()
        return _written(options, document, paths)


# --- input ----------------------------------------------------------------------------------------


def _strategy(options: OptimizeOptions) -> Strategy:
    """Return the strategy with the command's options in place of its own."""
    strategy = options.load()
    given = options.given()
    budget = {name: given[name] for name in Search.model_fields if name in given}
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
    """Return what of a strategy decides its points and their worth."""
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
        work.show(sum(len(one.runs) for one in tried) // len(frame.seeds), words)

    searching = progress.phase("searching", budget.calls, "points")
    with cli.resumable(command, record.path), searching as work:
        run = runs_at(frame.space, experiment)
        return search(engine, frame.valuation, run, record, show, len(frame.seeds))


def _baseline(strategy: Strategy) -> ClusterConfig | None:
    """Return the configuration that a success criterion asks for a change against, if any does."""
    if all(entry.change_percent is None for entry in strategy.success_criteria):
        return None
    try:
        return space_of(load_strategy(strategy.baseline)).base
    except ConfigError as error:
        raise strategy.refuse("baseline", str(error)) from None


def _written(options: OptimizeOptions, document: dict[str, Any], paths: OutputPaths) -> int:
    """Write the files, print the words, and return the exit code."""
    findings = findings_of(document, paths.result)
    document["answer"] = findings_of(document).answer.to_json()
    document["picture"] = findings.pictures[0].to_json() if findings.pictures else None
    files: outputs.Files = [
        (paths.result, lambda path: write_json(path, document)),
        (
            paths.figure if findings.pictures else None,
            lambda path: outputs.draw(findings.pictures[0], path),
        ),
    ]
    outputs.show(findings, lambda: outputs.write_files(files), options)
    if document["best_score"] is None:
        cli.say(options.command, "every point failed; see the outcomes in the result")
        return cli.EXIT_UNSUPPORTED
    return 0
