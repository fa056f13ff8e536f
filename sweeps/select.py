"""`python -m sweeps.select`: the best of several arms in one metric, with a stated probability of being right."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.commands import cli
from blis_jax.commands.options import AllSwitch, CommandOptions, option, outputs, words
from blis_jax.commands.options.cluster_flags import InstancesOption
from blis_jax.commands.options.stopping_flags import FEWEST_SEEDS
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.files.input_files import read_json
from sweeps.runs.options import (
    FOLDER,
    NUM_SEEDS,
    ComparisonOptions,
    RequestOptions,
    ResultFile,
    check_statistics,
)

if TYPE_CHECKING:
    from sweeps.compare.selection.stage import FinalQuestion
    from sweeps.strategies.arms import Arm

NAME = "sweeps.select"
MOST_SEEDS, FRESH_SEEDS, TOLERANCE = 2000, 256, 1.0
_DESCRIPTION = """\
Choose the best of several arms in one metric, with a stated probability of being right (Kim and Nelson's procedure).
All arms serve the same requests on 20 seeds, then on more, and one that is surely worse than another is run no
more. Say how small a difference does not matter: --indifference. With constraints an arm must keep them first. In the
end the winner is compared with the first arm on fresh seeds, which had no part in choosing it. Arms are written as
for sweeps.compare; --search takes the best points of a search.
"""
_EXAMPLES = """\
examples:
  which of three strategies has the shortest tail, differences below 1 ms being none:
    %(prog)s iter00_baseline iter08_token_budget@published iter13_class_lead@found --indifference 1

  the same among those that lose at most 2 %% of the tokens:
    %(prog)s iter00_baseline iter08_token_budget@published iter13_class_lead@found --indifference 1 \\
        --constraint 'output_tokens_per_s>=98%%'

  the five best points of a search, and what it began with:
    %(prog)s iter00_baseline --search out/search.json --finalists 5 --indifference 0.5
"""


class _Choice(CommandOptions, title="choice"):
    """Choice."""

    metric: str = option(
        str, "pooled_ttft_p99_ms[critical]", "METRIC", "metric to choose by, such as output_tokens_per_s",
    )  # fmt: skip
    indifference: float | None = option(
        cli.number, None, "X", "differences below it do not matter, in the metric's unit"
    )
    constraint: tuple[str, ...] = option(
        str, (), "BOUND",
        "METRIC<=LIMIT or METRIC>=LIMIT, the limit absolute or in % of the first arm; repeat it",
        is_repeated=True,
    )  # fmt: skip
    tolerance: float = option(
        cli.number, TOLERANCE, "P", "a constraint missed by less than P % of its limit may count as kept",
    )  # fmt: skip
    confidence: float = option(cli.number, 0.95, "P", "probability of choosing rightly")
    most_seeds: int = option(cli.whole, MOST_SEEDS, "N", "the most seeds to choose on")
    fresh_seeds: int = option(
        cli.at_least(2), FRESH_SEEDS, "N", "seeds on which the winner is compared in the end"
    )
    search: str | None = option(
        str, None, "FILE", "result of sweeps.optimize whose best points are arms, too"
    )
    finalists: int | None = option(
        cli.at_least(1), None, "N", "how many points of the search", shown=5
    )


class SelectOptions(
    _Choice, InstancesOption, RequestOptions, ResultFile, AllSwitch,
    command=NAME, description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    arms: tuple[str, ...] = words("ARM", "two or more, or one and --search")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    return cli.run_command(NAME, _select, arguments)


def _select(arguments: Sequence[str] | None) -> int:
    options = SelectOptions.read(arguments)
    check_statistics(options.confidence)
    prepare_backend(use_cache=not options.no_cache)  # the question's types are the runner's
    choice, arms = _choice(options), _arms(options)

    from sweeps.runs.experiment import Experiment
    from sweeps.runs.requests import requests_of, workload_of_arms

    configs = [arm.config for arm in arms]
    requests = requests_of(
        options, NAME, lambda: workload_of_arms(options, arms), configs, NUM_SEEDS
    )
    count = len(requests.seeds)
    if not FEWEST_SEEDS <= count <= choice.most_seeds or "," in (options.seeds or ""):
        raise ConfigError(
            f"--seeds: the first stage has {FEWEST_SEEDS} to {choice.most_seeds} seeds that follow one another; give "
            "their number"
        )
    paths = outputs.outputs_of(options, f"{FOLDER}/select.json", beside=(".jsonl",))

    from sweeps.compare.result import setting_of
    from sweeps.compare.selection.report import document_of, findings_of
    from sweeps.compare.selection.stage import FinalStage

    common = ComparisonOptions.of(options.given())
    setting = setting_of(common, requests, arms, lambda classes, is_one: choice.names)
    for name in choice.names:
        _check_class(name, setting.classes)
    experiment = Experiment(requests, choice.names, setting.targets)
    journal = experiment.journal(paths.beside(".jsonl"), "selection")
    with journal.held(options.resume):
        with experiment.kept_runs(NAME, journal, len(arms), setting.classes) as kept:
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
    from blis_jax.metrics.scalars import lookup

    slo_class = lookup(name)[1]
    if slo_class is not None and slo_class not in classes:
        raise ConfigError(
            f"metric {name}: no request is of class {slo_class}; there are {', '.join(classes)}"
        )


def _choice(options: SelectOptions) -> FinalQuestion:
    from blis_jax.metrics.scalars import lookup
    from sweeps.claims.grammar import parse_constraint
    from sweeps.claims.metrics import our_name
    from sweeps.compare.selection.stage import FinalQuestion

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
    from sweeps.strategies.arms import arms_of

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
    from sweeps.strategies.file import list_library

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


if __name__ == "__main__":
    sys.exit(main())
