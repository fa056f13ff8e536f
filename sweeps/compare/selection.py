"""Selection of the best of several arms as options of `blis-jax select` say: the question, the looks, and the file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.commands.options import outputs
from blis_jax.commands.options.seed_options import FEWEST_SEEDS
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import write_json
from blis_jax.files.input_files import read_json
from blis_jax.metrics.metric import LOWER
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.metrics.scalars import lookup
from blis_jax.statistics import paired
from blis_jax.statistics.intervals import BY_STUDENT
from blis_jax.statistics.paired import Difference, Pair
from blis_jax.statistics.sequential import (
    DECIDED,
    GOES_ON,
    MISSED,
    SPENT,
    Finalists,
    Look,
    Seen,
    Slack,
    WhatIsLeft,
    look_until_end,
)
from sweeps.claims.grammar import SHARE, Claim, our_name, parse_constraint
from sweeps.compare.result import setting_of
from sweeps.compare.selection_report import document_of, findings_of
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import KeptRuns, metric_values, pair_of
from sweeps.runs.options import FOLDER, NUM_SEEDS, ComparisonOptions
from sweeps.runs.requests import requests_of, workload_of_arms
from sweeps.strategies.arms import Arm, arms_of
from sweeps.strategies.file import list_library

if TYPE_CHECKING:
    from jaxtyping import Float

    from sweeps.select import SelectOptions


STEP = 10  # least number of seeds from one look to the next, and a tenth of those so far


@dataclass(frozen=True)
class FinalQuestion:
    """The metric and constraints by which to choose, and the confidence required."""

    metric: str
    zone: float  # differences below it do not matter, in the metric's unit
    constraints: tuple[Claim, ...]
    tolerance: float  # of a constraint, as a share of its limit
    confidence: float
    most_seeds: int

    def next_count(self, count: int, looked_at: Sequence[Seen]) -> int:
        """Return the number of seeds of the look that follows the look at `count` seeds."""
        return min(count + max(STEP, count // 10), self.most_seeds)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all metrics that a look needs, each once."""
        return tuple(
            dict.fromkeys((self.metric, *(constraint.metric for constraint in self.constraints)))
        )


@dataclass(frozen=True)
class FinalAnswer:
    """The outcome of a selection."""

    selection: WhatIsLeft
    num_seeds: int
    seeds_of: tuple[int, ...]  # how many each arm was run on
    means: tuple[float, ...]  # of the metric, over those
    failed: tuple[str, ...]  # arms with a run that did not end

    @property
    def winner(self) -> int | None:
        """Return the only arm left; None if several arms are left, or none."""
        return self.selection.left[0] if self.selection.is_over and self.selection.left else None


class FinalStage:
    """Run the arms on more and more seeds; the first arm, the reference of constraints in %, runs on all seeds."""

    def __init__(self, choice: FinalQuestion, arms: Sequence[Arm], kept: KeptRuns) -> None:
        self.choice, self.arms, self.kept = choice, arms, kept
        self.sign = 1.0 if lookup(choice.metric)[0].direction == LOWER else -1.0

    def run(self) -> FinalAnswer:
        """Run the arms on more and more seeds until one is left, or the seeds are spent."""
        error = 1 - self.choice.confidence
        num_first = len(self.kept.seeds)
        finalists = Finalists(len(self.arms), num_first, self.choice.zone, error)
        runs: list[tuple[RunSummary, ...]] = [() for _ in self.arms]
        going = list(range(len(self.arms)))

        def look_at(count: int) -> Look[WhatIsLeft]:
            """Run the arms that are left on `count` seeds, and drop those that cannot be the best."""
            again = sorted({0, *going})
            self.kept.reach(count, len(again))
            for at in again:
                runs[at] = self.kept.of(self.arms[at].config, self.arms[at].name)
            for at in going:
                if not all(run.is_whole for run in runs[at]):
                    finalists.feasible[at] = MISSED
            what_is_left = finalists.look(self._values(runs), self._slacks(runs))
            going[:] = what_is_left.left
            end = SPENT if count >= self.choice.most_seeds else GOES_ON
            return Look(count, what_is_left, end=DECIDED if what_is_left.is_over else end)

        looks = look_until_end(self.choice, num_first, look_at)
        return self._chosen(looks[-1].found, runs)

    def _values(self, runs: Sequence[tuple[RunSummary, ...]]) -> list[Float[np.ndarray, "seed"]]:
        return [self.sign * metric_values(of_arm, self.choice.metric) for of_arm in runs]

    def _slacks(self, runs: Sequence[tuple[RunSummary, ...]]) -> list[list[Slack]]:
        return [
            [
                self._slack(constraint, of_arm, runs[0][: len(of_arm)])
                for constraint in self.choice.constraints
            ]
            for of_arm in runs
        ]

    def _slack(
        self, constraint: Claim, runs: Sequence[RunSummary], reference: Sequence[RunSummary]
    ) -> Slack:
        if constraint.of == SHARE:
            pair = pair_of(reference, runs, constraint.metric)
        else:
            values = metric_values(runs, constraint.metric)
            pair = Pair(values, values)
        limit, values = constraint.limits(pair.second, pair.first), pair.second
        kept = limit - values if constraint.is_upper else values - limit
        scale = float(np.abs(np.nanmean(limit))) if len(limit) else 0.0
        return Slack(kept, self.choice.tolerance * scale)

    def _chosen(self, left: WhatIsLeft, runs: Sequence[tuple[RunSummary, ...]]) -> FinalAnswer:
        failed = [
            arm.name
            for arm, of_arm in zip(self.arms, runs, strict=True)
            if not all(run.is_whole for run in of_arm)
        ]
        return FinalAnswer(
            left,
            len(self.kept.seeds),
            tuple(map(len, runs)),
            tuple(float(metric_values(of_arm, self.choice.metric).mean()) for of_arm in runs),
            tuple(failed),
        )

    def afresh(self, winner: int, num_seeds: int) -> tuple[range, list[Difference]]:
        """Compare winner and first arm on seeds that had no part in the choice; return seeds and differences by
        metric."""
        last = self.kept.seeds[-1]
        seeds = range(last + 1, last + 1 + num_seeds)
        experiment = self.kept.experiment.on_seeds(seeds)
        configs = [self.arms[at].config for at in (0, winner)]
        first, second = (
            experiment.summaries([config], self.kept.recorder)[0] for config in configs
        )
        pairs = [pair_of(first, second, name) for name in self.choice.names]
        return seeds, paired.differences(pairs, BY_STUDENT)


def select_best(options: SelectOptions) -> int:
    """Choose the best arm as the options say, and write and print the choice; return the exit code."""
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
    return arms_of(texts, options.instances, fit=options.coefficients_from)


def finalist_texts(path: str, count: int) -> list[str]:
    """Return the `count` points with the best scores as arm texts, the best first; no failed points, equal ones
    once."""
    document = read_json(Path(path), "a result of blis-jax optimize")
    points = document.get("points") if isinstance(document, dict) else None
    if not isinstance(points, list):
        raise ConfigError(f"--search: {path} has no points; give a result of blis-jax optimize")
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
