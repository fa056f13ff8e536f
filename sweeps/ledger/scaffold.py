"""Begin a track: create its folder with the problem, the measured baseline, page templates, and an empty ledger."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options.seed_options import given_seeds
from blis_jax.core.outcome import WHOLE_NAMES
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import finite, json_text, replacing, write_json, write_text
from blis_jax.files.strict_yaml import sentence
from blis_jax.metrics.metric import ALL, names_in, split_name
from blis_jax.metrics.scalars import TOKEN_RATES, lookup
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import show_answer
from blis_jax.statistics.intervals import METHOD, estimate
from sweeps.claims.grammar import Claim
from sweeps.ledger.book import RECORDS, Ledger
from sweeps.ledger.render import write as write_ledger
from sweeps.ledger.trial import (
    ArmRuns,
    Experiments,
    arm_record,
    config_of,
    run_arms,
    versions,
    workload_hash,
)
from sweeps.runs.requests import check_seeds
from sweeps.strategies.arms import arm_of
from sweeps.strategies.file import list_library, load_strategy
from sweeps.strategies.space import space_of
from sweeps.tracks.criteria import by_class
from sweeps.tracks.problem import (
    FILE,
    MAIN,
    Criterion,
    Problem,
    load_problem,
    parse_problem,
    render,
    to_markdown,
    workload_named,
)

if TYPE_CHECKING:
    from sweeps.init import InitOptions


WORKLOAD_FILE = "workload.yaml"
BASELINE_FILE, PROBLEM_PAGE = "baseline.json", "problem.md"
STRATEGY_FILE = "iter1-strategy.yaml"


def begin_track(folder: Path, options: InitOptions) -> int:
    """Create a track, or measure the baseline of an existing one again, and print its figures; return the exit code."""
    if not options.refresh:
        _check_free(folder, options.overwrite)
    written = _refresh(folder, options) if options.refresh else _scaffold(folder, options)
    if not options.quiet:
        show_answer(_answer(folder, written), "\n".join(_lines(written)))
    return 0


def _check_free(folder: Path, is_forced: bool) -> None:
    """Refuse to replace a folder without --overwrite; and always one that is no track or has records."""
    if not folder.exists():
        return
    if not is_forced:
        raise ConfigError(
            f"{folder} exists; choose another name, or --overwrite if its ledger is empty"
        )
    if not (folder / FILE).is_file():
        raise ConfigError(f"{folder} is no track (it has no {FILE}); it is not replaced")
    contents = Ledger(folder).contents()
    if len(contents.records) > 1 or contents.torn or contents.problem:
        raise ConfigError(
            f"{folder / RECORDS} has records, which are never removed; choose another name"
        )


# --- making ---------------------------------------------------------------------------------------


def _scaffold(folder: Path, options: InitOptions) -> dict[str, Any]:
    workload_text = _workload_text(options.workload or "")
    problem = _problem(folder.name, options)
    text = _problem_text(problem)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with progress.phase("beginning the track"), cli.writing(folder), replacing(folder) as made:
        made.mkdir()
        if workload_text is not None:
            (made / WORKLOAD_FILE).write_text(workload_text, encoding="utf-8")
        (made / FILE).write_text(text, encoding="utf-8")
        problem = parse_problem(text, str(folder / FILE), made)
        baseline = measure_baseline(problem, made)
        (made / BASELINE_FILE).write_text(json_text(baseline), encoding="utf-8")
        _write_pages(made, problem, baseline)
        ledger = Ledger(made, load_problem(str(made)))
        ledger.begin()
        write_ledger(ledger)
    return baseline


def _refresh(folder: Path, options: InitOptions) -> dict[str, Any]:
    for name in options.given():
        if name not in ("name", "in_", "refresh", "overwrite", "quiet", "no_cache"):
            spelt = name.replace("_", "-")
            raise ConfigError(f"--refresh takes everything from problem.yaml; leave --{spelt} out")
    if options.overwrite:
        raise ConfigError("--refresh replaces no track; leave --overwrite out")
    if not folder.is_dir():
        raise ConfigError(f"{folder} does not exist; leave --refresh out to begin it")
    problem = load_problem(str(folder))
    with progress.phase("measuring the baseline"):
        baseline = measure_baseline(problem, folder)
    write_json(folder / BASELINE_FILE, baseline)
    with cli.writing(folder / PROBLEM_PAGE):
        write_text(folder / PROBLEM_PAGE, to_markdown(problem, baseline))
    return baseline


def _workload_text(name: str) -> str | None:
    """Return the text of a workload file, for its copy in the track."""
    if not name.endswith((".yaml", ".yml")):
        return None
    workload_named(name)
    return input_files.read_text(Path(name), "a workload in YAML")


def _problem(name: str, options: InitOptions) -> Problem:
    """Return the chosen problem with values replaced by the command's options."""
    base, values = load_problem(options.problem or "scheduling"), options.given()
    changes: dict[str, Any] = {
        key: values[key] for key in ("workload", "rate", "baseline", "rng") if key in values
    }
    if options.workload is not None:
        changes |= {"by_design": "", "rate": options.rate}
        if options.workload.endswith((".yaml", ".yml")):
            changes["workload"] = WORKLOAD_FILE
    elif options.rate is not None:
        changes["by_design"] = ""
    seeds = given_seeds(options, options.rng or base.rng)
    if seeds is not None:
        changes["seeds"] = seeds
    try:
        problem = Problem.model_validate({**base.model_dump(), **changes, "name": name})
    except ValidationError as error:
        raise ConfigError(f"--{sentence(error)}") from None
    check_seeds(problem.seeds, problem.rng)
    arm_of(problem.baseline)
    workload_named(options.workload or problem.workload, base.folder, problem.rate)
    return problem


def _problem_text(problem: Problem) -> str:
    """Return a problem as YAML."""
    content = problem.model_dump(mode="json", exclude={"folder"}, exclude_defaults=True)
    required = problem.model_dump(
        mode="json", include={"name", "question", "workload", "baseline", "seeds", "rng"}
    )
    text = yaml.safe_dump({**required, **content}, sort_keys=False, allow_unicode=True, width=100)
    return f"# The problem of this track. After an edit: blis-jax init {problem.name} --refresh\n{text}"


def _write_pages(made: Path, problem: Problem, baseline: Mapping[str, Any]) -> None:
    """Write the pages, and a first strategy file that is valid."""
    means = baseline["results"]["mean"]
    values = {
        "problem": problem,
        "settings": {key: json.dumps(value) for key, value in baseline["config"].items()},
        "classes": tuple(means["slo_ttft_p99_ms"]),
        "means": means,
        "library_baseline": problem.baseline if problem.baseline in list_library() else None,
    }
    (made / PROBLEM_PAGE).write_text(to_markdown(problem, baseline), encoding="utf-8")
    for name in ("research.md", STRATEGY_FILE, "iter1-findings.md"):
        (made / name).write_text(render(f"{name}.j2", **values), encoding="utf-8")
    space_of(load_strategy(str(made / STRATEGY_FILE)))


def _answer(folder: Path, baseline: Mapping[str, Any]) -> Answer:
    """Return the answer that the track exists, and the next step."""
    files = ", ".join(sorted(path.name for path in folder.iterdir()))
    return Answer.of(
        f"Is {folder} a track, with its baseline measured?",
        f"Written: {folder}/ ({files})",
        f"the baseline's figures below are means with 95 % intervals over {len(baseline['seeds'])} seeds.",
        f"{len(baseline['seeds'])} runs.",
        f"write {folder}/problem.md, then blis-jax ledger add --track {folder} ID …",
    )


def _lines(baseline: Mapping[str, Any]) -> list[str]:
    """Return the baseline's figures as lines of text."""
    lines = []
    for row in baseline["intervals"]:
        if row["metric"].startswith(("ttft_p99_ms", "tokens_per_sec")) and row["mean"] is not None:
            around = "" if row["low"] is None else f" [{row['low']:,.1f}, {row['high']:,.1f}]"
            lines.append(f"  {row['label']}: {row['mean']:,.1f}{around}")
    return [
        f"Baseline {baseline['baseline']['text']}, seeds {', '.join(map(str, baseline['seeds']))}:",
        *lines,
    ]


OF_RUN = {  # names of the published file, and ours
    "ttft_p99_ms": "ttft_p99_ms",
    "e2e_p99_ms": "e2e_p99_ms",
    "throughput_tps": "tokens_per_sec",
    "scheduling_delay_p99_ms": "scheduling_delay_p99_ms",
    "preemption_count": "num_preemptions",
}
TAIL = "ttft_p99_ms"
_LABELS = {
    "ttft_p99_ms": "TTFT P99, ms",
    "e2e_p99_ms": "E2E P99, ms",
    "tokens_per_sec": f"throughput, {TOKEN_RATES['tokens_per_sec']}",
    "scheduling_delay_p99_ms": "scheduling delay P99, ms",
    "goodput_rps": lookup("goodput_rps")[0].axis,
}


def measure_baseline(problem: Problem, folder: Path) -> dict[str, Any]:
    """Measure the baseline; return the document `baseline.json`.

    Raises:
        ConfigError: a run of the baseline does not come to its end.
    """
    spec = workload_named(problem.workload, folder, problem.rate)
    arm = arm_record(problem.baseline)
    experiment = Experiments().of(spec, problem.seeds, problem.rng, ())
    (runs,) = run_arms(experiment, [config_of(arm.settings)])
    for seed, outcome in zip(problem.seeds, runs.outcomes, strict=True):
        if outcome not in WHOLE_NAMES:
            raise ConfigError(
                f"the baseline {problem.baseline} ended on seed {seed} with {outcome}; a track needs "
                "one that ends, choose another workload or --baseline"
            )
    classes = spec.slo_classes
    return {
        "description": f"Baseline of the track {problem.name}",
        "baseline": arm.model_dump(),
        "config": arm.settings,
        "workload": problem.workload,
        "rate": problem.rate,
        "workload_hash": workload_hash(spec),
        "rng": problem.rng,
        "seeds": list(problem.seeds),
        "versions": versions(),
        "results": _results(problem.seeds, runs, classes),
        "interval_method": METHOD.replace(", paired by seed", ""),
        "intervals": _intervals(runs, classes),
        "targets": _targets(problem.criteria, runs, classes),
    }


def _results(seeds: Sequence[int], runs: ArmRuns, classes: Sequence[str]) -> dict[str, Any]:
    """Return every seed's figures, and their means, under the names of the published file."""
    results: dict[str, dict[str, Any]] = {}
    for place, seed in enumerate(seeds):
        figures = {name: values[place] for name, values in runs.figures.items()}
        tails = {name: finite(figures[f"{TAIL}[{name}]"]) for name in classes}
        results[f"seed_{seed}"] = {
            **{theirs: finite(figures[ours]) for theirs, ours in OF_RUN.items()},
            "slo_ttft_p99_ms": tails,
            "slo_differentiation_pct": _spread(list(tails.values())),
        }
    names = [name for name in results[f"seed_{seeds[0]}"] if name != "slo_ttft_p99_ms"]
    by_seed = list(results.values())
    results["mean"] = {name: _mean([entry[name] for entry in by_seed]) for name in names}
    results["mean"]["slo_ttft_p99_ms"] = {
        name: _mean([entry["slo_ttft_p99_ms"][name] for entry in by_seed]) for name in classes
    }
    return results


def _intervals(runs: ArmRuns, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Return means with their intervals, labelled for a table."""
    names = ["tokens_per_sec", "scheduling_delay_p99_ms"]
    for metric in ("ttft_p99_ms", "e2e_p99_ms", "goodput_rps"):
        names += names_in([metric], (ALL, *classes))
    intervals = []
    for name in names:
        base, slo_class = split_name(name)
        value = estimate(runs.figures[name])
        label = _LABELS[base] + (f", {slo_class}" if slo_class else "")
        intervals.append(
            {
                "label": label,
                "metric": name,
                "unit": lookup(name)[0].unit,
                "mean": finite(value.mean),
                "low": finite(value.low),
                "high": finite(value.high),
                "decimals": 0 if base == "tokens_per_sec" else 1,
            }
        )
    return intervals


def _targets(
    criteria: Sequence[Criterion], runs: ArmRuns, classes: Sequence[str]
) -> dict[str, str]:
    """Return, by criterion, the targets that are stated as changes, converted to the metric's unit."""
    targets = {}
    for criterion in criteria:
        claim = criterion.claim
        if claim is None or not claim.is_change or criterion.condition != MAIN:
            continue
        parts = []
        for slo_class, of_class in by_class(criterion, classes):
            values = runs.figures.get(of_class.metric)
            if values is not None and math.isfinite(values.mean()):
                where = f"{slo_class} " if "[" in of_class.metric and criterion.each_class else ""
                parts.append(f"{where}{_bound(of_class, float(values.mean()))}")
        if parts:
            targets[criterion.name] = ", ".join(parts)
    return targets


def _bound(claim: Claim, mean: float) -> str:
    low, high = (mean * (1 + bound / 100) for bound in (claim.low, claim.high))
    if math.isinf(claim.low):
        return f"≤ {high:,.1f}"
    return f"≥ {low:,.1f}" if math.isinf(claim.high) else f"{low:,.1f} to {high:,.1f}"


def _spread(values: Sequence[float | None]) -> float | None:
    """Return how much worse the worst class is than the best, in %; None where a class has no value."""
    known = [value for value in values if value is not None]
    if len(known) != len(values) or not known or min(known) <= 0:
        return None
    return 100 * (max(known) / min(known) - 1)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None
