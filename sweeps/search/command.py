"""`python -m sweeps.optimize STRATEGY`: search a strategy's parameters for the best score."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import trace_flags
from blis_jax.commands.flags.seed_options import given_seeds, seed_flags
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from sweeps.runs.options import (
    INSTANCES,
    OUTPUT,
    RNG,
    Paths,
    add_switches,
    paths_of,
)

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.workload.source import RequestSource
    from sweeps.search.engines import Engine
    from sweeps.search.loads import LoadBenches
    from sweeps.search.loop import SearchRecord
    from sweeps.search.racing import Tried
    from sweeps.search.result import SearchFrame
    from sweeps.strategies.file import Strategy
    from sweeps.strategies.space import Space

NAME = "sweeps.optimize"

_DESCRIPTION = """\
Search the parameters of a strategy for the best score: batches of points, each on every seed, in
compiled calls. STRATEGY is a name of the library (sweeps/strategies/library) or the path of a .yaml file.
Writes a result file, a record to resume from, and a figure.
"""
_EXAMPLES = """\
examples:
  the search of the ledger's iteration 8, 40 calls on the reference's requests of seeds 42 to 44:
    %(prog)s iter08_token_budget

  a strategy of your own with another budget and engine:
    %(prog)s mine.yaml --calls 64 --engine sobol --output out/mine.json

  on a trace of your own, in four windows:
    %(prog)s iter08_token_budget --trace trace.jsonl --trace-windows 4

  several objectives; the result has the Pareto front and its hypervolume:
    %(prog)s pareto_classes
"""
_BUDGET = (
    Flag(
        "engine",
        str,
        None,
        "NAME",
        "gp, ensemble, denoised, turbo, forest, gp_minimize, tpe, random, sobol, grid or pareto (default: the file's)",
    ),
    Flag("calls", cli.whole, None, "N", "points to try (default: the file's)"),
    Flag("initial", cli.whole, None, "N", "points before a model is used (default: the file's)"),
    Flag("batch", cli.whole, None, "N", "points chosen and run at a time (default: the file's)"),
    Flag(
        "rungs",
        cli.wholes,
        None,
        "4,16",
        "numbers of seeds after which a point is dropped unless it may be the best (default: the file's)",
    ),
    Flag("random-state", cli.whole, None, "N", "seed of the search itself (default: the file's)"),
)
_REQUESTS = (
    *seed_flags("default: the file's"),
    RNG,
)


def _parser() -> Parser:
    parser = Parser(prog=f"python -m {NAME}", description=_DESCRIPTION, epilog=_EXAMPLES)
    parser.add_argument("strategy", metavar="STRATEGY", nargs="?", help="name or path")
    parser.add_flags("budget", _BUDGET)
    parser.add_flags("cluster", (INSTANCES,))
    parser.add_flags("requests", _REQUESTS)
    parser.add_flags("trace", trace_flags.STUDY_FLAGS)
    parser.add_flags("output", OUTPUT)
    add_switches(parser)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _optimize, arguments)


def _optimize(arguments: Sequence[str] | None) -> int:
    given = _parser().given(sys.argv[1:] if arguments is None else arguments)
    strategy = _strategy(given)
    paths = paths_of(given, Path(given["strategy"]).stem)
    prepare_backend(use_cache="no_cache" not in given)

    from blis_jax.cluster.setting_values import plain_value
    from sweeps.runs.bench import Bench, measure_of, targets_of
    from sweeps.runs.metrics import reported_names
    from sweeps.search.engines import make, recommended
    from sweeps.search.loads import LoadBenches, load_specs
    from sweeps.search.loop import SearchRecord, workload_content
    from sweeps.search.objectives import Valuation
    from sweeps.search.racing import most_runs
    from sweeps.search.result import SearchFrame, to_document
    from sweeps.strategies.space import space_of

    space = space_of(strategy)
    spec, seeds, stream = _requests(given, strategy, space)
    valuation, loads = Valuation(strategy, has_loads=True), load_specs(strategy)
    engine, baseline = make(space, strategy.search), _baseline(strategy)
    names = (*valuation.names, *reported_names(spec))
    groups = [plain_value(space.base.instances)] if space.base.instances else []
    content = {
        **_content(strategy), "workload": workload_content(spec), "seeds": seeds, "stream": stream,
        "instances": groups,
        "loads": {name: workload_content(one) for name, one in loads.items()},
    }  # fmt: skip
    record = SearchRecord(paths.record, content)
    with record.held("resume" in given):
        measure = measure_of(targets_of(strategy), spec)
        main_bench = Bench(spec, seeds, stream, names, measure, strategy.search.batch)
        bench = LoadBenches(main_bench, valuation, loads)
        frame = SearchFrame(space, valuation, seeds, stream)
        tried = _searched(given, frame, engine, bench, record)
        if baseline is not None:
            with progress.phase("simulating the baseline"):
                frame = dataclasses.replace(frame, baseline=bench.run([baseline])[0])
        place = recommended(engine, [one.told() for one in tried], most_runs(tried))
        document = to_document(frame, tried, place)
        if "trace" in given:
            document["trace"] = spec.about()
        return _written(given, frame, document, paths)


# --- input ----------------------------------------------------------------------------------------


def _strategy(given: Mapping[str, Any]) -> Strategy:
    """The strategy with the command's options in place of its own."""
    from pydantic import ValidationError

    from blis_jax.files.strict_yaml import sentence
    from sweeps.strategies.file import Search, list_library, load_strategy, with_instances

    if "strategy" not in given or given["strategy"] is None:
        raise ConfigError(
            f"no strategy is given; give one of {', '.join(list_library())}, or a .yaml file"
        )
    strategy = load_strategy(given["strategy"])
    budget = {name: given[name] for name in Search.model_fields if name in given}
    try:
        search = Search.model_validate({**strategy.search.model_dump(), **budget})
    except ValidationError as error:
        raise ConfigError(f"--{sentence(error).replace('_', '-', 1)}") from None
    seeds = given_seeds(given) or strategy.seeds
    strategy = strategy.model_copy(update={"search": search, "seeds": seeds})
    return with_instances(strategy, given["instances"]) if "instances" in given else strategy


def _requests(
    given: Mapping[str, Any], strategy: Strategy, space: Space
) -> tuple[RequestSource, tuple[int, ...], str]:
    """Where the requests come from, the numbers of the runs, and the stream."""
    from blis_jax.traces.source import STREAM
    from sweeps.runs.bench import check_seeds, workload_of
    from sweeps.runs.options import seeds_of_trace
    from sweeps.search.objectives import Valuation

    trace = trace_flags.study_source(given, NAME)
    if trace is not None:
        if strategy.loads:
            raise strategy.refuse("loads", "a trace has one load; leave them out, or --trace")
        trace.check_classes(Valuation(strategy).names)
        return trace, seeds_of_trace(given, trace, [space.base], NAME, strategy.seeds), STREAM
    stream = given.get("rng", "reference")
    check_seeds(strategy.seeds, stream)
    return workload_of(strategy, space.num_requests), strategy.seeds, stream


def _content(strategy: Strategy) -> dict[str, Any]:
    """What of a strategy decides its points and their worth."""
    texts = {"name", "description", "prior_findings", "deviations", "points", "source", "folder"}
    texts |= {"baseline", "parameter_paths"}
    return strategy.model_dump(mode="json", exclude=texts)


# --- the search -----------------------------------------------------------------------------------


def _searched(
    given: Mapping[str, Any],
    frame: SearchFrame,
    engine: Engine,
    bench: LoadBenches,
    record: SearchRecord,
) -> list[Tried]:
    from sweeps.search.loop import runs_at, search
    from sweeps.search.racing import best_of

    budget = frame.valuation.strategy.search
    work = progress.begin("searching", budget.calls, "points")

    def show(tried: Sequence[Tried]) -> None:
        best = best_of(tried)
        words = f"best score {best.worth.score:.6g}" if best is not None else "all points failed"
        work.show(sum(len(one.runs) for one in tried) // len(frame.seeds), words)

    try:
        run = runs_at(frame.space, bench)
        return search(engine, frame.valuation, run, record, show, len(frame.seeds))
    except KeyboardInterrupt:
        cli.say(NAME, f"{record.path} has what was done; --resume goes on from there")
        raise
    finally:
        work.clear()


def _baseline(strategy: Strategy) -> ClusterConfig | None:
    """The configuration that a success criterion asks for a change against, if any does."""
    from sweeps.strategies.file import load_strategy
    from sweeps.strategies.space import space_of

    if all(entry.change_percent is None for entry in strategy.success_criteria):
        return None
    try:
        return space_of(load_strategy(strategy.baseline)).base
    except ConfigError as error:
        raise strategy.refuse("baseline", str(error)) from None


def _written(
    given: Mapping[str, Any], frame: SearchFrame, document: Mapping[str, Any], paths: Paths
) -> int:
    """The files and the words; the exit code."""
    with cli.writing(paths.result):
        write_json(paths.result, document)
    written = [paths.result]
    if paths.figure is not None and document["best_score"] is not None:
        from sweeps.search.figure import draw

        with cli.writing(paths.figure):
            draw(document, paths.figure, Path(frame.space.strategy.source).stem)
        written.append(paths.figure)
    if "quiet" not in given:
        for line in _lines(document):
            print(line)
        print(f"Written: {', '.join(map(str, written))}")
    if document["best_score"] is None:
        cli.say(NAME, "every point failed; see the outcomes in the result")
        return cli.EXIT_UNSUPPORTED
    return 0


def _num_runs(document: Mapping[str, Any]) -> str:
    """Runs of a point; with rungs the fewest and the most."""
    most, rungs = len(document["seeds"]), document["search"].get("rungs")
    return f"{rungs[0]} to {most}" if rungs else str(most)


def _by(stream: str) -> str:
    return "of a trace" if stream == "recorded" else f"by {stream}"


def _lines(document: Mapping[str, Any]) -> list[str]:
    """What the search found, for people."""
    failed = ", ".join(f"{count} × {name}" for name, count in document["failures"].items())
    lines = [
        f"{document['strategy']}: {document['n_calls']} points × {_num_runs(document)} runs, "
        f"engine {document['search']['engine']}, requests {_by(document['rng'])}.",
        f"Failed points: {failed or 'none'}.",
    ]
    if document["best_score"] is None:
        return lines
    if document.get("is_recommended"):
        lines.append(
            f"Recommended by the model: call {document['best_call'] + 1}, score {document['best_score']:.6g}. The "
            f"lowest score, {document['lowest_score']:.6g} at call {document['lowest_call'] + 1}, is partly luck."
        )
    else:
        lines.append(
            f"Best score {document['best_score']:.6g} at call {document['best_call'] + 1}:"
        )
    lines.append(f"  {json.dumps(document['best_parameters'])}")
    for slo_class, metrics in document["best_figures"].items():
        tail = metrics.get("ttft_p99_ms")
        if tail is not None and tail["mean"] is not None:
            half = (tail["high"] - tail["mean"]) if tail["high"] is not None else None
            words = f" ± {half:.1f} (95 %)" if half is not None else ""
            lines.append(f"  TTFT P99 {slo_class}: {tail['mean']:.1f} ms{words}")
    for entry in document["success"]:
        reached = "no figure" if entry["reached"] is None else f"{entry['reached']:.4g}"
        goal = entry.get("threshold", entry.get("change_percent"))
        unit = " % against the baseline" if "change_percent" in entry else ""
        sign = "at most" if entry["direction"] == "min" else "at least"
        verdict = "met" if entry["is_met"] else "not met"
        lines.append(f"  {entry['metric']} {sign} {goal:g}{unit}: {reached}, {verdict}")
    if "front" in document:
        count, volume = len(document["front"]["calls"]), document["front"]["hypervolume"]
        lines.append(f"Pareto front of {count} points, hypervolume {volume:.6g}.")
    return lines
