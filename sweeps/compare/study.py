"""A comparison of arms as a report: the document's figures, distributions of its runs, and one run of each arm
again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.calibrate.posterior import Posterior, load
from blis_jax.commands.options.outputs import OutputPaths, write_pages
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import finite
from blis_jax.metrics.metric import LOWER
from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.reports.arm_pictures import TAIL, timelines_of
from blis_jax.reports.differences import findings
from blis_jax.reports.findings import Findings, Quantity, Sentence
from blis_jax.reports.study import (
    CURVE_LEVELS,
    Curve,
    MetricChange,
    SeedValues,
    ShownFigure,
    Study,
    TtftShare,
    judged,
    provenance_of,
    words_of,
)
from blis_jax.reports.words import target_line
from blis_jax.statistics.intervals import Estimate, percentile_ends
from sweeps.compare import ranking
from sweeps.compare import report as words
from sweeps.compare.report import stopping_lines
from sweeps.runs.measured import KeptRuns, metric_values

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.metrics.run_summary import RunSummary
    from blis_jax.records.record import RunRecord
    from sweeps.compare.__main__ import CoefficientOptions
    from sweeps.runs.experiment import Experiment
    from sweeps.strategies.arms import Arm


Document = Mapping[str, Any]


def write_reports(
    document: Document,
    arms: Mapping[str, tuple[ClusterConfig, Sequence[RunSummary]]],
    experiment: Experiment | None,
    paths: OutputPaths,
    command: str,
) -> None:
    """Write the page and the trace that the options ask for; an experiment makes one run of each arm again."""
    seed = common_seed(document["seeds"], [runs for _, runs in arms.values()])
    records = {} if seed is None or experiment is None else {
        name: experiment.record(config, seed) for name, (config, _) in arms.items()
    }  # fmt: skip
    runs = {name: of_arm for name, (_, of_arm) in arms.items()}
    study = with_runs(study_of(document, command), runs, records, seed)
    configs = {name: config for name, (config, _) in arms.items()}
    write_pages(study, records, configs, seed, paths)


def common_seed(seeds: Sequence[int], arms: Sequence[Sequence[RunSummary]]) -> int | None:
    """Return the first seed on which the runs of all arms finished; None if there is no such seed."""
    whole = (all(runs[at].is_whole for runs in arms) for at in range(len(seeds)))
    return next((seed for seed, is_whole in zip(seeds, whole, strict=True) if is_whole), None)


def findings_of(document: Document, seconds: float | None = None) -> Findings:
    """Return the findings of a comparison for every output; `seconds` is the wall time of the command."""
    return findings(replace(study_of(document), time=seconds_sentence(seconds)))


def seconds_sentence(seconds: float | None) -> Sentence | None:
    """Return a sentence on how long a command took; None if the time is not known."""
    return None if seconds is None else Sentence.of(Quantity(seconds, like=10.0), " s in all.")


def study_of(document: Document, command: str = "") -> Study:
    """Return a comparison as a report, without the parts that need whole runs."""
    inference, runs_are = document["inference"], words_of(document)
    by_name = {arm["name"]: arm for arm in document["arms"]}
    arms = [by_name[name] for name in ranking.shown_arms(document)]
    best = ranking.verdict(document)
    has_parts = any(any(arm["ttft_parts"].values()) for arm in arms)
    return Study(
        command=command,
        workload=document["workload"],
        cluster=document.get("cluster", ""),
        strategies=tuple(arm["name"] for arm in arms),
        descriptions={},
        kinds={arm["name"]: arm["strategy"] or "" for arm in arms},
        classes=(ALL, *document["classes"]),
        seeds=tuple(document["seeds"]),
        runs=runs_are,
        pairs="blocks" if inference.get("block_s") else "",
        differences=tuple(map(MetricChange.of_json, document["comparisons"])),
        sure=ranking.sure(document),
        **judged(document),
        title=ranking.title(document),
        asked=ranking.question(document),
        verdict=(best,) if best is not None else (),
        next=ranking.next_step(document),
        ranked=tuple(ranking.ranking_table(document)),
        tails=tuple(tail for arm in arms for tail in _tails(arm)),
        num_runs=document.get("num_runs", len(by_name) * len(document["seeds"])),
        values=tuple(value for arm in arms for value in values_of(arm["name"], arm["figures"])),
        parts=tuple(part for arm in arms for part in _parts(arm)),
        parts_of=f"Means over all {runs_are.many} of the comparison; the parts add up to the TTFT.",
        limits=target_line(document["targets"]),
        notes=(
            words.requests_line(document),
            *words.percentile_lines(document["comparisons"]),
            *words.token_rate_lines([*document["comparisons"], *document["criteria"]]),
        ),
        remarks=(*words.failure_lines(document), *window_lines(document)),
        tables=(*words.draw_tables(document), *([words.part_table(document)] if has_parts else [])),
        brief=_brief(document),
        more=_more(document),
        provenance=_provenance(document),
    )


WINDOW_OVER_E2E = 5  # so long a window has a beginning of a fifth at most


def window_lines(document: Document) -> Iterator[str]:
    """Yield a sentence if a trace's windows are short against the time that requests take."""
    trace = document["trace"] or {}
    if not trace.get("windows"):
        return
    of_all = ((arm["name"], arm["figures"].get(ALL, {})) for arm in document["arms"])
    e2e_s = {
        name: figures["pooled_e2e_p99_ms"]["mean"] / 1000
        for name, figures in of_all
        if figures.get("pooled_e2e_p99_ms", {}).get("mean") is not None
    }
    name, longest_s = max(e2e_s.items(), key=lambda one: one[1], default=("", 0.0))
    window_s = trace["span_s"] / trace["windows"]
    if window_s >= WINDOW_OVER_E2E * longest_s:
        return
    most = int(trace["span_s"] / (WINDOW_OVER_E2E * longest_s))
    less = f"give --trace-windows {most} or fewer, or" if most >= 2 else "give"
    yield (
        f"windows of {window_s:.3g} s are short: 1 % of the requests of {name} take {longest_s:.3g} s or more, and a "
        f"window begins on an idle cluster, so waits are too short; {less} no --trace-windows, for one run of the "
        "whole trace"
    )


def _brief(document: Document) -> dict[str, list[str]]:
    """Return, by title, the findings that are shown by default beside the differences."""
    said = words_of(document).in_text
    shown = {
        **document,
        "criteria": [criterion for criterion in document["criteria"] if criterion["is_asked"]],
    }
    findings = {
        "Routers that fare exactly alike": ranking.ranking_lines(document),
        "Enough seeds": stopping_lines(document),
        "Success criteria": [said(line) for line in words.criterion_lines(shown)],
        "Mechanisms that did nothing": [said(line) for line in words.idle_lines(document)],
    }
    return {title: list(lines) for title, lines in findings.items() if lines}


def _more(document: Document) -> dict[str, list[str]]:
    """Return, by title, the findings that are shown only on request."""
    said = words_of(document).in_text
    criteria = words.criterion_lines(document)
    findings = {
        "Success criteria of other classes": [
            said(line) for line in criteria if line.startswith("(beyond")
        ],
        "From which age a lower class goes first": words.crossover_lines(document),
        "Which mechanisms acted": [said(line) for line in words.acting_lines(document)],
    }
    return {title: lines for title, lines in findings.items() if lines}


def with_runs(
    study: Study,
    runs: Mapping[str, Sequence[RunSummary]],
    records: Mapping[str, RunRecord],
    seed: int | None,
) -> Study:
    """Return the report, completed by the distributions of all runs and by one run of each arm over time."""
    return replace(
        study,
        levels=CURVE_LEVELS,
        curves=tuple(curves_of(runs, study.classes)),
        timelines=timelines_of(records, seed) if seed is not None else (),
    )


def values_of(name: str, figures: Mapping[str, Mapping[str, Any]]) -> Iterable[SeedValues]:
    """Yield the values of one arm on every seed, by class and metric."""
    for slo_class, of_class in figures.items():
        for metric, entry in of_class.items():
            yield SeedValues(name, slo_class, metric, tuple(map(finite, entry["per_seed"])))


def _tails(arm: Mapping[str, Any]) -> Iterable[ShownFigure]:
    """Yield the TTFT P99 of one arm with its intervals."""
    for slo_class, of_class in arm["figures"].items():
        if TAIL in of_class:
            yield ShownFigure(arm["name"], slo_class, TAIL, Estimate.of_json(of_class[TAIL]))


def curves_of(runs: Mapping[str, Sequence[RunSummary]], classes: Sequence[str]) -> Iterable[Curve]:
    """Yield TTFT distributions of the runs that have kept one; records of earlier versions have not."""
    for name, of_arm in runs.items():
        for slo_class in classes:
            known = [
                run.ttft_curve_ms[slo_class] for run in of_arm if slo_class in run.ttft_curve_ms
            ]
            if known:
                yield Curve.of(name, slo_class, np.array(known))


def _parts(arm: Mapping[str, Any]) -> Iterable[TtftShare]:
    for slo_class, views in arm["ttft_parts"].items():
        for view, entry in views.items():
            for group, value in entry["groups"].items():
                yield TtftShare(arm["name"], slo_class, view, group, value)


def _provenance(document: Document) -> dict[str, Any]:
    arms = document["arms"]
    return {
        **provenance_of(document, words_of(document)),
        "requests a run": str(document["num_requests"] or "as many as the workload draws"),
        "fingerprints of the arms' runs": {arm["name"]: arm["fingerprint"] for arm in arms},
        "settings of the arms": {arm["name"]: arm["settings"] for arm in arms},
        "options for blis-jax run": {arm["name"]: arm["cli_args"] for arm in arms},
    }


# --- what is not known of the latency coefficients, carried through a comparison ------------------

# Every arm is run again with coefficients drawn from a calibration, the same draws for all arms. Each
# metric then has a margin beside its mean, and each arm a probability of being the best: over draws,
# and over resamples of the seeds within each draw.


NUM_RESAMPLES = 200
LEAST_DRAWS, MOST_DRAWS = 2, 10_000


@dataclasses.dataclass(frozen=True)
class CoefficientDraws:
    """Coefficients of a calibration, and the draws that stand for its uncertainty."""

    posterior: Posterior
    values: Float[np.ndarray, "draw term"]

    def configs(self, arm: Arm) -> list[tuple[ClusterConfig, str]]:
        """Return the arm's configuration with each draw's coefficients, and a name for each."""
        return [
            (self.posterior.configured(arm.config, values), f"{arm.name}, draw {number}")
            for number, values in enumerate(self.values)
        ]


def draws_of(options: CoefficientOptions, random_state: int) -> CoefficientDraws | None:
    """Return the draws of coefficients that the options ask for; None without a calibration."""
    if options.coefficients_from is None:
        if options.draws is not None:
            raise ConfigError("--draws: there is no --coefficients-from to draw from; give both")
        return None
    count = options.usual_draws if options.draws is None else options.draws
    if not LEAST_DRAWS <= count <= MOST_DRAWS:
        raise ConfigError(f"--draws: got {count}, allowed is {LEAST_DRAWS} to {MOST_DRAWS}")
    posterior = load(Path(options.coefficients_from))
    return CoefficientDraws(posterior, posterior.draws(count, random_state))


def coefficient_section(
    draws: CoefficientDraws,
    arms: Sequence[Arm],
    kept: KeptRuns,
    metrics: Sequence[str],
    random_state: int,
) -> dict[str, Any]:
    """Run every arm with every draw; return margins and probabilities of being the best arm, as plain data."""
    runs = [[kept.of(*config_and_seed) for config_and_seed in draws.configs(arm)] for arm in arms]
    return {
        "source": draws.posterior.source,
        "terms": list(draws.posterior.terms),
        "draws": draws.values.tolist(),
        "figures": [
            entry
            for name in metrics
            for entry in _figures([arm.name for arm in arms], runs, name, random_state)
        ],
    }


def _figures(
    names: Sequence[str], runs: Sequence[Sequence[tuple[RunSummary, ...]]], name: str, seed: int
) -> list[dict[str, Any]]:
    """Return one metric of every arm: the mean over draws and seeds, its margin, and how often the arm is the best."""
    metric, slo_class = lookup(name)
    values = np.array([[metric_values(of_draw, name) for of_draw in of_arm] for of_arm in runs])
    # seeds that every arm and draw came to the end of
    common = np.all(np.isfinite(values), axis=(0, 1))
    if not common.any():
        return []
    values = values[:, :, common]
    best = probability_of_best(values, metric.direction == LOWER, seed)
    by_draw = values.mean(axis=2)
    return [
        {
            "arm": arm,
            "metric": metric.name,
            "class": slo_class or ALL,
            "unit": metric.unit,
            "mean": float(of_arm.mean()),
            **dict(zip(("low", "high"), percentile_ends(of_arm).tolist(), strict=True)),
            "num_seeds": int(common.sum()),
            "probability_of_best": float(share),
        }
        for arm, of_arm, share in zip(names, by_draw, best, strict=True)
    ]


def probability_of_best(
    values: Float[np.ndarray, "arm draw seed"], is_lower_better: bool, seed: int
) -> Float[np.ndarray, " arm"]:
    """Return the share of (draw, resample of seeds) pairs in which an arm has the best mean `[arm]`; ties are
    shared."""
    random = np.random.default_rng(seed)
    num_seeds = values.shape[2]
    picked = random.integers(0, num_seeds, (NUM_RESAMPLES, num_seeds))
    means = values[:, :, picked].mean(axis=3)  # arm, draw, resample
    signed = means if is_lower_better else -means
    is_best = signed <= signed.min(axis=0)
    return np.mean(is_best / is_best.sum(axis=0), axis=(1, 2))
