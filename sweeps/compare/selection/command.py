"""Choose the best of several arms as options of `sweeps.select` say: its question, its stages, and its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.commands.options import outputs
from blis_jax.commands.options.stopping_flags import FEWEST_SEEDS
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.files.input_files import read_json
from blis_jax.metrics.scalars import lookup
from sweeps.claims.grammar import parse_constraint
from sweeps.claims.metrics import our_name
from sweeps.compare.result import setting_of
from sweeps.compare.selection.report import document_of, findings_of
from sweeps.compare.selection.stage import FinalQuestion, FinalStage
from sweeps.runs.experiment import Experiment
from sweeps.runs.options import (
    FOLDER,
    NUM_SEEDS,
    ComparisonOptions,
)
from sweeps.runs.requests import requests_of, workload_of_arms
from sweeps.strategies.arms import arms_of
from sweeps.strategies.file import list_library

if TYPE_CHECKING:
    from sweeps.select import SelectOptions
    from sweeps.strategies.arms import Arm


def select_best(options: SelectOptions) -> int:
    """Choose the best arm as the options say, and write and print it; return the exit code."""
    choice, arms = _choice(options), _arms(options)

    configs = [arm.config for arm in arms]
    requests = requests_of(
        options, options.command, lambda: workload_of_arms(options, arms), configs, NUM_SEEDS
    )
    count = len(requests.seeds)
    if not FEWEST_SEEDS <= count <= choice.most_seeds or "," in (options.seeds or ""):
        raise ConfigError(
            f"--seeds: the first stage has {FEWEST_SEEDS} to {choice.most_seeds} seeds that follow one another; give "
            "their number"
        )
    paths = outputs.outputs_of(options, f"{FOLDER}/select.json", beside=(".jsonl",))

    common = ComparisonOptions.of(options.given())
    setting = setting_of(common, requests, arms, lambda classes, is_one: choice.names)
    for name in choice.names:
        _check_class(name, setting.classes)
    experiment = Experiment(requests, choice.names, setting.targets)
    journal = experiment.journal(paths.beside(".jsonl"), "selection")
    with journal.held(options.resume):
        with experiment.kept_runs(options.command, journal, len(arms), setting.classes) as kept:
            stage = FinalStage(choice, arms, kept)
            chosen = stage.run()
            fresh = None
            if chosen.winner:
                fresh = stage.afresh(chosen.winner, options.fresh_seeds)
        document = document_of(setting, choice, arms, chosen, fresh)
        findings = findings_of(document)
        document["answer"] = findings.answer.to_json()
        files: outputs.Files = [(paths.result, lambda path: write_json(path, document))]
        outputs.show(findings, lambda: outputs.write_files(files), options)
        return 0


def _check_class(name: str, classes: Sequence[str]) -> None:
    slo_class = lookup(name)[1]
    if slo_class is not None and slo_class not in classes:
        raise ConfigError(
            f"metric {name}: no request is of class {slo_class}; there are {', '.join(classes)}"
        )


def _choice(options: SelectOptions) -> FinalQuestion:
    metric = our_name(options.metric)
    lookup(metric)
    zone = options.indifference
    if zone is None or not zone > 0:
        raise ConfigError(
            "--indifference: say below what a difference does not matter, above 0 and in the metric's unit; "
            "1 is 1 ms for a latency"
        )
    tolerance = options.tolerance
    if not 0 < tolerance <= 50:
        raise ConfigError(f"--tolerance: got {tolerance:g}, allowed is above 0 up to 50 %")
    most = options.most_seeds
    if not FEWEST_SEEDS <= most <= 100_000:
        raise ConfigError(f"--most-seeds: got {most}, allowed is {FEWEST_SEEDS} to 100000")
    constraints = tuple(parse_constraint(text) for text in options.constraint)
    return FinalQuestion(metric, zone, constraints, tolerance / 100, options.confidence, most)


def _arms(options: SelectOptions) -> tuple[Arm, ...]:
    texts = list(options.arms)
    if options.search is not None:
        texts += finalist_texts(
            options.search, 5 if options.finalists is None else options.finalists
        )
    elif options.finalists is not None:
        raise ConfigError("--finalists has no meaning without --search; give the search's result")
    if len(texts) < 2:
        raise ConfigError(f"two or more arms are needed, got {len(texts)}; see --help")
    return arms_of(texts, options.instances)


def finalist_texts(path: str, count: int) -> list[str]:
    """Write as arms the points with the best scores that did not fail, the best first; equal points once."""
    document = read_json(Path(path), "a result of sweeps.optimize")
    points = document.get("points") if isinstance(document, dict) else None
    if not isinstance(points, list):
        raise ConfigError(f"--search: {path} has no points; give a result of sweeps.optimize")
    strategy = document.get("strategy")
    if strategy not in list_library():
        raise ConfigError(
            f"--search: {path} is the search of strategy {strategy!r}, which is not in the library; give its "
            "points as arms, FILE.yaml:NAME=VALUE;…"
        )
    whole = [point for point in points if not point.get("is_estimate")]
    good = [point for point in whole if not point["failures"] and point["score"] is not None]
    texts = dict.fromkeys(
        _arm_text(strategy, point)
        for point in sorted(good, key=lambda point: float(point["score"]))
    )
    if not texts:
        raise ConfigError(f"--search: every point of {path} failed; there is nothing to choose")
    return [f"point{place}={text}" for place, text in enumerate(list(texts)[:count], start=1)]


def _arm_text(strategy: str, point: Mapping[str, Any]) -> str:
    values = ";".join(f"{name}={value}" for name, value in point["parameters"].items())
    return f"{strategy}:{values}"
