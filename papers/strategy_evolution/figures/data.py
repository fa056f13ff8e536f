"""What the figures show, computed once: one small CSV a figure, in long form.

Columns: policy, x and slo_class as the figure needs them, metric, then mean, low and high over the
seeds (95 % interval of the mean unless the figure says otherwise) and how many seeds had a value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.files.atomic_write import replacing
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from papers.record.measures import ALL, CLASSES, LEVELS, curves, scalars, ttft_parts
from papers.record.runs import PaperRuns, Say, SettingSample
from papers.record.settings import RunSetting
from papers.strategy_evolution.figures import settings as arms

if TYPE_CHECKING:
    from papers.record.measures import Measurement

COLUMNS = ("policy", "x", "slo_class", "metric", "mean", "low", "high", "num_seeds")
BAND = (5, 95)  # percent of the seeds, in distributions
TAIL = "ttft_p99_ms"
Row = tuple[str, float | str, str, str, float, float, float, int]
Get = Callable[[Iterable[RunSetting], "Measurement"], Mapping[str, SettingSample]]


def distributions(get: Get) -> list[Row]:
    """Figure 1: TTFT by class, mean curve and the middle 90 % of the seeds."""
    samples = get(arms.policies(arms.MAIN), curves())
    rows: list[Row] = []
    for policy, sample in samples.items():
        values = sample.values.reshape(len(sample.seeds), len(CLASSES), len(LEVELS))
        for place, slo_class in enumerate(CLASSES):
            of_class = values[:, place][np.isfinite(values[:, place]).all(axis=1)]
            low, high = np.percentile(of_class, BAND, axis=0)
            mean, num = of_class.mean(axis=0), len(of_class)
            rows += [
                (policy, float(level), slo_class, "ttft_ms", float(m), float(lo), float(hi), num)
                for level, m, lo, hi in zip(LEVELS, mean, low, high, strict=True)
            ]
    tails = get(arms.policies(arms.MAIN), scalars())
    return rows + _values(tails, [f"{TAIL}[{slo_class}]" for slo_class in CLASSES])


def admission(get: Get) -> list[Row]:
    """Figure 2: the gate's threshold against the tails of the classes, throughput and rejections."""
    metrics = ["tokens_per_sec", "goodput_rps", "reject_rate", "reject_rate[sheddable]"]
    metrics += [f"{TAIL}[{slo_class}]" for slo_class in CLASSES]
    return _values(get(arms.gates(), scalars()), metrics)


def rates(get: Get) -> list[Row]:
    """Figure 3: arrival rates."""
    metrics = [*(f"{TAIL}[{slo_class}]" for slo_class in CLASSES), "tokens_per_sec"]
    return _values(get(arms.rates(), scalars()), metrics)


def blocks(get: Get) -> list[Row]:
    """Figure 4: KV blocks of an instance; also the share of runs that came to their end."""
    metrics = [*(f"{TAIL}[{slo_class}]" for slo_class in CLASSES), "num_preemptions"]
    samples = get(arms.blocks(), scalars())
    rows = _values(samples, metrics)
    for name, sample in samples.items():
        policy, x = _place(name)
        share = np.isfinite(sample.column(TAIL)).astype(float)
        rows.append(_row(policy, x, ALL, "share_ended", estimate(share)))
    return rows


def instances(get: Get) -> list[Row]:
    """Figure 5: cluster sizes at the published load and at equal load and duration."""
    samples = get(arms.instances(), scalars())
    metrics = [f"{TAIL}[{slo_class}]" for slo_class in CLASSES]
    return _values(samples, metrics) + _changes(samples, metrics, arms.BASELINE)


def step_constants(get: Get) -> list[Row]:
    """Figure 6: what critical requests gain from whole prompts as a step's constant cost varies."""
    samples = get(arms.step_constants(), scalars())
    metrics = [f"{TAIL}[{slo_class}]" for slo_class in CLASSES]
    return _values(samples, metrics) + _changes(samples, metrics, arms.CHUNKED)


def ablation(get: Get) -> list[Row]:
    """Figure 8: priorities and chunks switched one by one, and each part of 8-opt taken back."""
    metrics = [*(f"{TAIL}[{slo_class}]" for slo_class in CLASSES), "tokens_per_sec"]
    square = get(arms.square(), scalars())
    rows = _values(square, metrics)
    of = f"{TAIL}[critical]"
    both, priority, whole, none = (square[name].column(of) for name in arms.SQUARE_NAMES)
    rows.append(_row("interaction", "", "critical", TAIL, estimate(both - priority - whole + none)))
    parts = get(arms.one_at_a_time(), scalars())
    start = parts[arms.SEARCHED]
    for name, sample in parts.items():
        if name != arms.SEARCHED:
            rows += _change_rows(name, "from 8-opt", start, sample, metrics)
    return rows


def parts(get: Get) -> list[Row]:
    """Figure 9: parts of TTFT by class, of all requests and of the slowest."""
    samples = get(arms.policies(arms.FOUR), ttft_parts())
    rows: list[Row] = []
    for policy, sample in samples.items():
        for name in sample.names:
            slo_class, which, part = name.split("/")
            found = estimate(sample.column(name))
            rows.append(_row(policy, which, slo_class, part, found))
    return rows


TABLES: Mapping[str, Callable[[Get], list[Row]]] = {
    "ttft_distributions": distributions,
    "admission_threshold": admission,
    "rate_sweep": rates,
    "kv_pressure": blocks,
    "instance_scaling": instances,
    "step_constant": step_constants,
    "ablation": ablation,
    "ttft_parts": parts,
}
SEARCHES = "searches"


def compute(
    runs: PaperRuns,
    seeds: Sequence[int],
    folder: Path,
    say: Say | None,
    done: Callable[[Path], None],
) -> None:
    """Writes the data of every figure; what the runs have is not simulated again."""
    for name, table in TABLES.items():
        rows = table(partial(_get, runs, seeds, say))
        done(_written(folder / f"{name}.csv", rows))
    done(_written(folder / f"{SEARCHES}.csv", _searches(runs.folder)))


def _get(
    runs: PaperRuns,
    seeds: Sequence[int],
    say: Say | None,
    settings: Iterable[RunSetting],
    measurement: Measurement,
) -> Mapping[str, SettingSample]:
    return runs.get(settings, seeds, measurement, say)


def needed() -> list[RunSetting]:
    """Every setting that the figures take their scalars from."""
    return [
        *arms.policies(arms.MAIN),
        *arms.gates(),
        *arms.rates(),
        *arms.blocks(),
        *arms.instances(),
        *arms.step_constants(),
        *arms.square(),
        *arms.one_at_a_time(),
    ]


def _place(name: str) -> tuple[str, float | str]:
    """Policy and place of a setting named `policy|x`."""
    policy, _, x = name.partition("|")
    try:
        return policy, float(x)
    except ValueError:
        return policy, x


def _row(policy: str, x: float | str, slo_class: str, metric: str, found: Estimate) -> Row:
    return policy, x, slo_class, metric, found.mean, found.low, found.high, found.num_seeds


def _split(metric: str) -> tuple[str, str]:
    base, _, rest = metric.partition("[")
    return base, rest[:-1] or ALL


def _values(samples: Mapping[str, SettingSample], metrics: Sequence[str]) -> list[Row]:
    rows = []
    for name, sample in samples.items():
        policy, x = _place(name)
        for metric in metrics:
            base, slo_class = _split(metric)
            rows.append(_row(policy, x, slo_class, base, estimate(sample.column(metric))))
    return rows


def _changes(
    samples: Mapping[str, SettingSample], metrics: Sequence[str], reference: str
) -> list[Row]:
    """Changes in % against the reference policy at the same place."""
    rows = []
    for name, sample in samples.items():
        policy, x = _place(name)
        if policy != reference:
            base = samples[f"{reference}|{name.partition('|')[2]}"]
            rows += _change_rows(policy, x, base, sample, metrics)
    return rows


def _change_rows(
    policy: str, x: float | str, base: SettingSample, sample: SettingSample, metrics: Sequence[str]
) -> list[Row]:
    rows = []
    for metric in metrics:
        name, slo_class = _split(metric)
        found = difference(base.column(metric), sample.column(metric)).percent
        rows.append(_row(policy, x, slo_class, f"{name}_change_percent", found))
    return rows


def _searches(folder: Path) -> list[Row]:
    """Figure 7: the scores of both searches, call by call, by the search command.

    Low and high are a standard error of the objective's mean over the seeds away.
    """
    import json

    from sweeps.search.command import main

    rows: list[Row] = []
    for strategy in arms.SEARCHES:
        result = folder / f"search-{strategy}.json"
        result.parent.mkdir(parents=True, exist_ok=True)
        if not result.is_file():
            resume = ["--resume"] if result.with_suffix(".jsonl").is_file() else []
            words = [strategy, "--output", str(result), "--figure", "none", "--quiet", *resume]
            if main(words):
                raise RuntimeError(f"the search {strategy} failed; see its message above")
        document: Mapping[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        for call, point in enumerate(document["points"], 1):
            tails = point["figures"]["critical"][TAIL]["per_seed"]
            error = float(np.std(tails, ddof=1)) / math.sqrt(len(tails))
            score = point["score"]
            ends = score - error, score + error
            rows.append((strategy, call, ALL, "score", score, *ends, len(tails)))
    return rows


def _written(path: Path, rows: Sequence[Row]) -> Path:
    import pandas as pd

    with replacing(path) as written:
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        frame["x"] = [f"{x:g}" if isinstance(x, float | int) else x for x in frame["x"]]
        frame.to_csv(written, index=False, float_format="%.6g", lineterminator="\n")
    return path
