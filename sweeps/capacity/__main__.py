"""`python -m sweeps.capacity WORKLOAD`: the smallest cluster that meets its service targets, and how surely."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.flags import trace_flags
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import replacing, write_json
from blis_jax.files.overwriting import refuse_existing
from sweeps.capacity.flags import DEFAULT_OUTPUT, MOST_INSTANCES, NAME, NUM_SEEDS, parser

if TYPE_CHECKING:
    from blis_jax.files.journal import Journal
    from blis_jax.metrics.measure import Measure
    from blis_jax.workload.source import RequestSource
    from sweeps.capacity.counting import CountedRuns
    from sweeps.capacity.finding import Smallest
    from sweeps.capacity.layouts import LayoutFamily
    from sweeps.capacity.targets import ServiceTarget
    from sweeps.strategies.arms import Arm

USUAL_POLICY = "iter00_baseline"
FEWEST_SEEDS = 16


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return cli.run_command(NAME, _capacity, arguments)


def _capacity(arguments: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    given = parser().given(words)
    paths = _paths(given)
    question = _question(given)
    setting = {**question.setting, "command": cli.command_text(NAME, words)}
    prepare_backend(use_cache="no_cache" not in given)
    journal = _journal(question, paths)
    with journal.held("resume" in given):
        runs = _runs(question, journal)
        found = [_found(question, runs, arm, family) for arm, family in question.clusters]
        return _written(given, question, runs, found, setting, paths)


# --- input ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Paths:
    result: Path
    record: Path
    page: Path
    figure: Path | None


def _paths(given: Mapping[str, Any]) -> _Paths:
    result, figure = cli.result_paths(given, Path(DEFAULT_OUTPUT))
    paths = _Paths(result, result.with_suffix(".jsonl"), result.with_suffix(".md"), figure)
    every = (paths.result, paths.record, paths.page, paths.figure)
    refuse_existing(given, {"--output": every}, can_resume=True)
    return paths


@dataclass(frozen=True)
class _Question:
    """What is asked, read and checked before JAX starts."""

    source: RequestSource
    name: str
    seeds: tuple[int, ...]
    stream: str
    measure: Measure
    targets: tuple[ServiceTarget, ...]
    arms: tuple[Arm, ...]
    clusters: tuple[tuple[Arm, LayoutFamily], ...]
    confidence: float
    most: int
    is_corrected: bool
    has_prices: bool

    @property
    def setting(self) -> dict[str, Any]:
        """For the document."""
        return {
            "workload": self.name,
            "seeds": list(self.seeds),
            "stream": self.stream,
            "confidence": self.confidence,
            "max_instances": self.most,
            "is_corrected": self.is_corrected,
        }


def _question(given: Mapping[str, Any]) -> _Question:
    from blis_jax.metrics.measure import Measure
    from sweeps.capacity.layouts import families
    from sweeps.capacity.targets import read_service_targets
    from sweeps.runs.options import classes_of
    from sweeps.strategies.arms import arms_of

    arms = arms_of(given.get("policy") or [USUAL_POLICY])
    is_split = "roles" in given
    gpus = _gpus(given, arms, is_split)
    hardware = gpus, given.get("model"), given.get("tp"), _prices(given)
    source, name, seeds, stream = _requests(given, arms)
    confidence = given.get("confidence", 0.95)
    if not 0.5 <= confidence < 1:
        raise ConfigError(f"--confidence: got {confidence:g}, allowed is 0.5 up to below 1")
    measure = Measure({}, source.measure.warm_up_s, source.measure.cool_down_s)
    measure.check(source)
    return _Question(
        source=source,
        name=name,
        seeds=seeds,
        stream=stream,
        measure=measure,
        targets=read_service_targets(given.get("targets") or (), classes_of(source)),
        arms=arms,
        clusters=tuple(
            (arm, family) for arm in arms for family in families(*hardware, is_split, arm.config)
        ),
        confidence=confidence,
        most=given.get("max_instances", MOST_INSTANCES),
        is_corrected=is_split or any(arm.config.corrected for arm in arms),
        has_prices="prices" in given,
    )


def _gpus(given: Mapping[str, Any], arms: Sequence[Arm], is_split: bool) -> tuple[str, ...]:
    if "gpus" not in given:
        for name in ("model", "tp"):
            if name in given:
                raise ConfigError(
                    f"--{name} has no meaning without --gpus; name the GPUs to compare"
                )
    for arm in arms:
        if arm.config.instances and "gpus" not in given:
            raise ConfigError(
                f"--policy {arm.name}: its instances differ, so that more of them is not one thing; give --gpus, "
                "or a policy with num_instances"
            )
        if is_split and arm.config.hand_over_policy not in ("none", "pools"):
            raise ConfigError(
                f"--roles: {arm.name} has a hand-over policy of its own, {arm.config.hand_over_policy}; leave "
                "--roles out"
            )
    names = tuple(part.strip() for part in given.get("gpus", "").split(",") if part.strip())
    if len(set(names)) != len(names):
        raise ConfigError("--gpus: a GPU is named twice; name each once")
    return names


def _prices(given: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for part in filter(None, (part.strip() for part in given.get("prices", "").split(","))):
        name, equals, value = part.partition("=")
        try:
            price = float(value)
        except ValueError:
            price = 0.0
        if not equals or not 0 < price < float("inf"):
            raise ConfigError(
                f"--prices: {part!r} is not GPU=PRICE with a price above 0, such as H100=3.0"
            )
        found[name.strip()] = price
    return found


def _requests(
    given: Mapping[str, Any], arms: Sequence[Arm]
) -> tuple[RequestSource, str, tuple[int, ...], str]:
    """Where requests come from, its name, the numbers of the runs, and who draws."""
    from blis_jax.commands.flags.seed_options import seeds_of
    from blis_jax.traces.source import STREAM
    from blis_jax.workload.spec import override
    from sweeps.runs.bench import check_seeds, workload_from
    from sweeps.runs.options import seeds_of_trace
    from sweeps.runs.workload_names import list_workloads

    name = given.get("workload")
    if name is None:
        raise ConfigError(
            "no workload is given; name a built-in one such as mixed, a .yaml file or a trace"
        )
    if (
        name not in list_workloads()
        and Path(name).suffix not in (".yaml", ".yml")
        and Path(name).exists()
    ):
        given = {**{key: value for key, value in given.items() if key != "workload"}, "trace": name}
        trace = trace_flags.study_source(given, NAME)
        assert trace is not None
        seeds = seeds_of_trace(given, trace, [arm.config for arm in arms], NAME)
        _check_number(seeds, "cut the trace into more --trace-windows")
        return trace, name, seeds, STREAM
    trace_flags.check({key: value for key, value in given.items() if key != "workload"})
    seeds, stream = seeds_of(given, NUM_SEEDS), given.get("rng", "reference")
    check_seeds(seeds, stream)
    _check_number(seeds, "give more --seeds")
    spec = workload_from(name, "WORKLOAD", num_requests=given.get("num_requests"))
    if "rate" in given:
        spec = override(spec, aggregate_rate=given["rate"])
    return spec, name, seeds, stream


def _check_number(seeds: Sequence[int], advice: str) -> None:
    if len(seeds) < FEWEST_SEEDS:
        raise ConfigError(
            f"--seeds: {len(seeds)} {'run is' if len(seeds) == 1 else 'runs are'} too few to be sure by; "
            f"{FEWEST_SEEDS} is the least: {advice}"
        )


# --- runs -----------------------------------------------------------------------------------------


def _journal(question: _Question, paths: _Paths) -> Journal:
    from blis_jax.files.journal import Journal
    from sweeps.search.loop import workload_content

    content = {
        "workload": workload_content(question.source), "seeds": list(question.seeds), "stream": question.stream,
        "targets": [str(target) for target in question.targets],
    }  # fmt: skip
    return Journal(paths.record, "capacity", content)


def _runs(question: _Question, journal: Journal) -> CountedRuns:
    from sweeps.capacity.counting import CountedRuns, InTime

    in_time = InTime(question.targets, question.measure)
    return CountedRuns(question.source, question.seeds, question.stream, in_time, journal)


def _found(question: _Question, runs: CountedRuns, arm: Arm, family: LayoutFamily) -> Smallest:
    from sweeps.capacity.deciding import Decision
    from sweeps.capacity.finding import Finder

    finder = Finder(runs, question.confidence, max(question.most, family.least))
    line = progress.begin(f"sizing {arm.name} on {family.name}", finder.num_tries, "clusters")
    tried = 0

    def show(size: int, decision: Decision) -> None:
        nonlocal tried
        tried += 1
        line.show(tried, f"{size} instances: {decision.answer.value}")

    try:
        return finder.find(arm, family, question.is_corrected, show)
    finally:
        line.clear()


# --- output ---------------------------------------------------------------------------------------


def _written(
    given: Mapping[str, Any],
    question: _Question,
    runs: CountedRuns,
    found: Sequence[Smallest],
    setting: Mapping[str, Any],
    paths: _Paths,
) -> int:
    """The files and the words; the exit code."""
    from sweeps.capacity.document import cheapest, summary_lines, to_document
    from sweeps.capacity.page import page_lines

    asked = question.targets, question.confidence, question.has_prices
    lines = list(summary_lines(found, *asked))
    page = page_lines(found, question.targets, setting, question.has_prices, paths.figure)
    with cli.writing(paths.result):
        write_json(paths.result, to_document(found, question.targets, setting, lines))
    with cli.writing(paths.page), replacing(paths.page) as written:
        written.write_text("\n".join(page) + "\n", encoding="utf-8")
    files = [paths.result, paths.page]
    if paths.figure is not None:
        from sweeps.capacity.figure import draw

        with cli.writing(paths.figure):
            draw(found, question.targets, paths.figure)
        files.append(paths.figure)
    if "quiet" not in given:
        for line in lines:
            print(line)
        print(f"{runs.num_runs:,} runs. Written: {', '.join(map(str, files))}")
    return 0 if cheapest(found) is not None else cli.EXIT_UNSUPPORTED


if __name__ == "__main__":
    sys.exit(main())
