"""The tables, made from runs, and as the five lines of a terminal and as the page of results."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import progress
from blis_jax.metrics.run_summary import RunSummary
from blis_jax.reports.render import table_lines
from blis_jax.statistics.intervals import estimate
from blis_jax.statistics.paired import differences
from papers.openevolve.experiments import (
    CLASSES,
    HAND_MADE,
    HANDED_OVER,
    METRICS,
    NEW_SEEDS,
    ArmsOnWorkload,
    published,
)
from papers.pages import answer, texts_of
from sweeps.evolve.score import mean_gain, weighted
from sweeps.runs.experiment import Experiment
from sweeps.runs.measured import KeptRuns, Recorder, metric_values, pair_of
from sweeps.strategies.arms import key_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.files.journal import Journal

# --- published numbers beside the same runs here, changes on new seeds by class, and scores -------


NAME = "papers.openevolve"
FIGURES, CHANGES, SCORES = "figures", "changes", "scores"
TABLES = (FIGURES, SCORES, CHANGES)
TOLERANCE = 1e-12  # relative: the files have 15 to 17 digits
LEAST_PERCENT = 1e-9
Row = dict[str, str]
Runs = Mapping[str, Sequence[RunSummary]]
BY_CLASS = tuple(f"{name}[{slo_class}]" for name in METRICS for slo_class in CLASSES)
PUBLISHED_SCORES = {
    ("C", "baseline"): -4564.475420055555,
    ("C", "oracle"): -3988.0102153555554,
    ("C", "load-only"): -3883.601207488889,
    (HANDED_OVER, "evolved"): 11.464534120276209,
    (HANDED_OVER, "lor"): -6.549429491636838,
    (HANDED_OVER, "glia"): -8.805680512482695,
}


@dataclass(frozen=True)
class ArmsAsk:
    """Arms of a group that are run on seeds, with a journal in a folder."""

    group: ArmsOnWorkload
    seeds: Sequence[int]
    arms: Sequence[str]
    folder: Path

    @cached_property
    def experiment(self) -> Experiment:
        """Return the experiment that runs the arms."""
        names = METRICS if len(self.seeds) < len(NEW_SEEDS) else (*METRICS, *BY_CLASS)
        return Experiment.on(self.group.spec, tuple(self.seeds), "reference", names)

    @property
    def name(self) -> str:
        """Return the stem of the journal."""
        name = f"{self.group.set}-{self.group.workload}-{len(self.seeds)}"
        return name.replace("/", "").replace(" ", "-")

    def journal(self) -> Journal:
        """Return the record of the runs."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.experiment.journal(self.folder / f"{self.name}.jsonl", NAME)

    def _wanted(self) -> dict[str, tuple[ClusterConfig, str]]:
        about = f"{self.group.set} {self.group.workload}"
        return {f"{self.name} {arm}": (self.group.arms[arm], f"{about} {arm}") for arm in self.arms}

    def runs(self) -> Runs:
        """Run the arms; what was run before is read from the journal."""
        with self.experiment.kept_runs(NAME, self.journal(), len(self.arms), ()) as kept:
            return {
                arm: kept.of(*wanted)
                for arm, wanted in zip(self.arms, self._wanted().values(), strict=True)
            }

    def counts(self) -> Mapping[str, int]:
        """Return how many runs each arm has."""
        return dict.fromkeys(self._wanted(), len(self.seeds))

    def about(self) -> Any:
        """Return the journal's content, on which the runs depend."""
        return self.journal().content

    def made(
        self, missing: Sequence[tuple[str, int]]
    ) -> Iterator[tuple[str, list[int], list[Any]]]:
        """Yield the missing runs call by call."""
        recorder = Recorder(self.experiment.names, self.experiment.measure, ())
        made = KeptRuns(self.experiment, recorder).made(self.experiment, self._wanted(), missing)
        for key, runs in made:
            yield key, list(runs), [run.document() for run in runs.values()]

    def take(self, documents: Mapping[str, Sequence[Any]]) -> None:
        """Write all runs, made elsewhere, to the journal."""
        wanted = self._wanted().items()
        self.journal().rewrite([[key_of(config), documents[key]] for key, (config, _) in wanted])


def asks(groups: Sequence[ArmsOnWorkload], folder: Path) -> list[ArmsAsk]:
    """Return all runs to make, on published seeds and on new ones."""
    first = [ArmsAsk(group, group.seeds, list(group.arms), folder) for group in groups]
    quick = {id(group): [arm for arm in group.arms if arm not in group.slow] for group in groups}
    new = [ArmsAsk(group, NEW_SEEDS, quick[id(group)], folder) for group in groups]
    return [*first, *(ask for ask in new if ask.arms)]


def figures(data: Path, published_seeds: Sequence[ArmsAsk]) -> tuple[list[Row], dict[str, Runs]]:
    """Return every published number beside the same figure here, and the runs by set and workload."""
    rows: list[Row] = []
    kept: dict[str, Runs] = {}
    for ask in published_seeds:
        group, runs = ask.group, ask.runs()
        kept[f"{group.set} {group.workload}"] = runs
        for arm, of_arm in runs.items():
            for (seed, metric), wanted in published(data, group, arm).items():
                values = dict(
                    zip(map(str, group.seeds), metric_values(of_arm, metric), strict=True)
                )
                here = float(np.mean(list(values.values()))) if seed == "mean" else values[seed]
                is_equal = math.isclose(here, wanted, rel_tol=TOLERANCE)
                rows.append({
                    "set": group.set, "workload": group.workload, "arm": arm, "seed": seed, "metric": metric,
                    "published": repr(wanted), "here": repr(float(here)), "equal": str(is_equal).lower(),
                    "difference %": f"{100 * (here / wanted - 1):+.3g}",
                })  # fmt: skip
    return rows, kept


def changes(group: ArmsOnWorkload, runs: Runs) -> list[Row]:
    """Return each arm's changes against the first arm on new seeds, of all requests and by class, judged together."""
    base, *others = runs
    with_class = [
        name for name in (*METRICS, *BY_CLASS) if np.isfinite(metric_values(runs[base], name)).any()
    ]
    compared = [(arm, name) for arm in others for name in with_class]
    judged = differences([pair_of(runs[base], runs[arm], name) for arm, name in compared])
    return [
        {
            "set": group.set, "workload": group.workload, "arm": arm, "against": base, "metric": name,
            "mean": f"{change.second_mean:.6g}", "of the other": f"{change.first_mean:.6g}",
            "change %": _percent(change.simultaneous_percent.mean),
            "low": _percent(change.simultaneous_percent.low), "high": _percent(change.simultaneous_percent.high),
            "verdict": change.verdict, "seeds": str(change.num_pairs),
        }
        for (arm, name), change in zip(compared, judged, strict=True)
    ]  # fmt: skip


def _percent(value: float) -> str:
    """Return a change in %; an end that lies just off 0 is 0."""
    return f"{value:+.3g}" if abs(value) > LEAST_PERCENT else "0"


# --- scores ---------------------------------------------------------------------------------------


def of_example(by_workload: Mapping[str, Runs], arm: str) -> np.ndarray:
    """Return the example's score by seed: minus half the mean E2E and half its P95, averaged over the workloads."""
    parts = [[metric_values(runs[arm], name) for name in METRICS] for runs in by_workload.values()]
    means = np.mean(np.array(parts), axis=0)
    return np.asarray(-0.5 * means[0] - 0.5 * means[1])


def of_hand_over(by_workload: Mapping[str, Runs], arm: str) -> float:
    """Return the hand-over's score: the workloads' mean gain over 1_1 in %, of values averaged over the seeds."""
    sums = []
    for runs in by_workload.values():
        for name in ("1_1", arm):
            first, second = (
                float(np.mean(metric_values(runs[name], metric))) for metric in METRICS
            )
            sums.append(np.array([0.5 * first + 0.5 * second]))
    return float(mean_gain(*sums))


def resampled_gain(
    by_workload: Mapping[str, Runs], arm: str, num: int = 9999
) -> tuple[float, float, float]:
    """Return the hand-over's score with the 95 % interval of resampled seeds."""
    sums = [
        weighted(runs[name], dict.fromkeys(METRICS, 0.5))
        for runs in by_workload.values()
        for name in ("1_1", arm)
    ]
    chosen = np.random.default_rng(0).integers(0, len(sums[0]), (num, len(sums[0])))
    low, high = np.quantile(mean_gain(*(values[chosen] for values in sums)), (0.025, 0.975))
    return of_hand_over(by_workload, arm), float(low), float(high)


def scores(first: Mapping[str, Runs], new: Mapping[str, Runs]) -> Iterator[Row]:
    """Yield each published score, the score of the same runs here, and the score on new seeds with a 95 % interval."""
    for (name, arm), wanted in PUBLISHED_SCORES.items():
        of_set, of_new = (
            {key: runs for key, runs in by_set.items() if key.startswith(f"{name} ")}
            for by_set in (first, new)
        )
        if not of_set or any(arm not in runs for runs in of_set.values()):
            continue
        if len(of_new) < len(of_set):
            of_new = {}
        row = {"set": name, "arm": arm, "published": repr(wanted)}
        if name == HANDED_OVER:
            here = of_hand_over(of_set, arm)
            ends = resampled_gain(of_new, arm) if of_new else (math.nan,) * 3
        else:
            here = float(of_example(of_set, arm)[0])
            ends = (math.nan,) * 3
            if of_new:
                interval = estimate(of_example(of_new, arm))
                ends = interval.mean, interval.low, interval.high
        is_equal = str(math.isclose(here, wanted, rel_tol=TOLERANCE)).lower()
        row |= {"here": repr(here), "equal": is_equal}
        row |= dict(zip(("new seeds", "low", "high"), (f"{end:.5g}" for end in ends), strict=True))
        yield row


def make(data: Path, wanted: Sequence[ArmsAsk]) -> Iterator[tuple[str, list[Row]]]:
    """Yield the tables by name, the first as soon as the published seeds are run."""
    published_seeds = [ask for ask in wanted if ask.seeds != NEW_SEEDS]
    with progress.phase("published seeds", len(published_seeds), "workloads"):
        rows, first = figures(data, published_seeds)
    yield FIGURES, rows
    new: dict[str, Runs] = {}
    changed: list[Row] = []
    for ask in wanted:
        if ask.seeds == NEW_SEEDS:
            runs = new[f"{ask.group.set} {ask.group.workload}"] = ask.runs()
            changed += changes(ask.group, runs)
    yield CHANGES, changed
    yield SCORES, list(scores(first, new))


# --- the page -------------------------------------------------------------------------------------


Rows = Sequence[Mapping[str, str]]
Tables = Mapping[str, Rows]
SHOWN = {METRICS[0]: "E2E mean", METRICS[1]: "E2E P95"}


def _count(rows: Rows) -> str:
    equal = sum(row["equal"] == "true" for row in rows)
    return f"{equal} of {len(rows)}"


def printed(tables: Tables) -> list[str]:
    """Return what the command prints."""
    figures, scores, changes = tables[FIGURES], tables[SCORES], tables[CHANGES]
    evolved = next((row for row in scores if row["arm"] == "evolved"), None)
    verdict = [f"{_count(figures)} published numbers are equal to the last digit."]
    if evolved is not None:
        low, high = float(evolved["low"]), float(evolved["high"])
        verdict.append(
            f"The winner's published {float(evolved['published']):+.2f} (two seeds) is "
            f"{float(evolved['new seeds']):+.2f} [{low:+.2f}, {high:+.2f}] on new seeds."
        )
    worse = [row for row in _by_class(changes, "evolved") if row["verdict"] == "worse"]
    verdict += [f"Worse: {_said(row)}." for row in worse[:4]]
    odd = [row for row in figures if row["equal"] != "true"]
    lines = answer(
        "whether the published numbers of evolved routers come out, and whether they hold on seeds of nobody's search",
        verdict,
        "equal means equal to 1e-12; intervals are 95 %, of one workload's arms, metrics and classes together.",
        f"{len(figures)} published numbers, {sum(1 for _ in changes)} comparisons on 20 seeds.",
        "docs/how-to/evolve.md: your own program.",
    )
    lines += [f"{row['set']:12} {row['workload']:18} {row['arm']:12} {row['seed']:5} {row['metric']:12} "
              f"{row['difference %']} %" for row in odd]  # fmt: skip
    return lines


def _by_class(changes: Rows, arm: str) -> list[Mapping[str, str]]:
    return [row for row in changes if row["arm"] == arm and "[" in row["metric"]]


def _name(metric: str) -> str:
    name, _, slo_class = metric.partition("[")
    return f"{slo_class.rstrip(']') or 'all'} {SHOWN[name]}"


def _said(row: Mapping[str, str]) -> str:
    return f"{_name(row['metric'])} on {row['workload']} {row['change %']} % [{row['low']}, {row['high']}]"


def page(tables: Tables) -> str:
    """Return the page of results."""
    figures = tables[FIGURES]
    words = texts_of(NAME)
    parts = [words["intro"], "## Published numbers, again\n", words["rules"]]
    parts.append(_table(("what", "numbers", "equal to the last digit"), list(_counts(figures))))
    odd = [row for row in figures if row["equal"] != "true"]
    if odd:
        parts.append(words["differs"])
        parts.append(_table(
            ("workload", "arm", "seed", "metric", "published, ms", "here, ms", "difference"),
            [(row["workload"], row["arm"], row["seed"], _name(row["metric"]), f"{float(row['published']):.1f}",
              f"{float(row['here']):.1f}", f"{row['difference %']} %") for row in odd],
        ))  # fmt: skip
    if tables[SCORES]:
        parts += _scores(tables[SCORES], words["scores"])
    if tables[CHANGES]:
        parts += list(_new_seeds(tables[CHANGES], words["classes"]))
    return "\n".join(parts).rstrip() + "\n"


def _counts(figures: Rows) -> Iterator[tuple[str, ...]]:
    for name in dict.fromkeys(row["set"] for row in figures):
        rows = [row for row in figures if row["set"] == name]
        from_go = [row for row in rows if "Go" in row["arm"]]
        what = {HANDED_OVER: "the winner and its baselines, two workloads, two seeds",
                HAND_MADE: "nine hand-made routers, read from their Go files, glia_40qps"}  # fmt: skip
        of_ours = [row for row in rows if row not in from_go]
        yield (
            what.get(name, f"set {name}, seed 42: {_runs(of_ours)}"),
            str(len(of_ours)),
            _count(of_ours),
        )
        if from_go:
            yield "the winner, read from its Go file", str(len(from_go)), _count(from_go)


def _runs(rows: Rows) -> str:
    """Say which arms were run on how many workloads."""
    workloads_by_arm: dict[str, set[str]] = {}
    for row in rows:
        workloads_by_arm.setdefault(row["arm"], set()).add(row["workload"])
    most = max(map(len, workloads_by_arm.values()))
    arms = [
        arm if len(workloads) == most else f"{arm} on {', '.join(sorted(workloads))}"
        for arm, workloads in workloads_by_arm.items()
    ]
    return f"{', '.join(arms)}; {most} workloads"


def _scores(rows: Rows, about: str) -> list[str]:
    shown = [
        (f"{row['set']}", row["arm"], f"{float(row['published']):.4f}", "yes" if row["equal"] == "true" else "no",
         "not run" if row["new seeds"] == "nan" else f"{row['new seeds']} [{row['low']}, {row['high']}]")
        for row in rows
    ]  # fmt: skip
    heads = ("set", "arm", "published", "equal here", "20 new seeds")
    return ["## Scores\n", about, _table(heads, shown)]


def _new_seeds(rows: Rows, about: str) -> Iterator[str]:
    yield "## By class, on new seeds\n"
    yield about
    for name in dict.fromkeys(row["set"] for row in rows):
        yield f"### {'The hand-over' if name == HANDED_OVER else f'Set {name}'}\n"
        of_set = [row for row in rows if row["set"] == name]
        keys = dict.fromkeys((row["workload"], row["arm"]) for row in of_set)
        columns = [("all", ""), *((slo_class, f"[{slo_class}]") for slo_class in CLASSES)]
        heads = (f"{label} {short}" for label, _ in columns for short in ("mean", "P95"))
        by_metric = {(row["workload"], row["arm"], row["metric"]): row for row in of_set}
        yield _table(("workload", "arm", *heads), [
            (*key, *(_cell(by_metric.get((*key, f"{m}{suffix}"))) for _, suffix in columns for m in METRICS))
            for key in keys
        ])  # fmt: skip


def _cell(row: Mapping[str, str] | None) -> str:
    if row is None:
        return ""
    text = f"{row['change %']} % [{row['low']}, {row['high']}]"
    return f"**{text}**" if row["verdict"] == "worse" else text


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([*table_lines(head, rows), ""])
