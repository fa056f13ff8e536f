"""Data of figures: one small CSV a figure, in long form, from samples of settings.

Columns: policy, x and slo_class as the figure needs them, metric, then mean, low and high over the
seeds (95 % interval of the mean unless the figure says otherwise) and how many seeds had a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from blis_jax.files.atomic_write import replacing
from blis_jax.metrics.metric import ALL, split_name
from blis_jax.statistics.intervals import Estimate, estimate
from blis_jax.statistics.paired import difference
from papers.record.runs import PaperRuns, Say, SettingSample
from papers.record.settings import RunSetting

if TYPE_CHECKING:
    from papers.record.measures import Measurement

COLUMNS = ("policy", "x", "slo_class", "metric", "mean", "low", "high", "num_seeds")
Row = tuple[str, float | str, str, str, float, float, float, int]
Get = Callable[[Iterable[RunSetting], "Measurement"], Mapping[str, SettingSample]]


def compute(
    tables: Mapping[str, Callable[[Get], list[Row]]],
    runs: PaperRuns,
    seeds: Sequence[int],
    folder: Path,
    say: Say | None,
) -> None:
    """Write the data of each figure; what the runs have is not simulated again."""

    def get(
        settings: Iterable[RunSetting], measurement: Measurement
    ) -> Mapping[str, SettingSample]:
        return runs.get(settings, seeds, measurement, say)

    for name, table in tables.items():
        write_rows(folder / f"{name}.csv", table(get))


def place_of(name: str) -> tuple[str, float | str]:
    """Return policy and place of a setting named `policy|x`."""
    policy, _, x = name.partition("|")
    try:
        return policy, float(x)
    except ValueError:
        return policy, x


def row_of(policy: str, x: float | str, slo_class: str, metric: str, found: Estimate) -> Row:
    """Return one line of the data."""
    return policy, x, slo_class, metric, found.mean, found.low, found.high, found.num_seeds


def split_metric(metric: str) -> tuple[str, str]:
    """Return a metric's name and its class, `all` if it has none."""
    base, slo_class = split_name(metric)
    return base, slo_class or ALL


def value_rows(samples: Mapping[str, SettingSample], metrics: Sequence[str]) -> list[Row]:
    """Return means of metrics of settings named `policy|x`."""
    rows = []
    for name, sample in samples.items():
        policy, x = place_of(name)
        for metric in metrics:
            base, slo_class = split_metric(metric)
            rows.append(row_of(policy, x, slo_class, base, estimate(sample.column(metric))))
    return rows


def changes_at(
    samples: Mapping[str, SettingSample], metrics: Sequence[str], reference: str
) -> list[Row]:
    """Return changes in % against the reference policy at the same place."""
    rows = []
    for name, sample in samples.items():
        policy, x = place_of(name)
        if policy != reference:
            base = samples[f"{reference}|{name.partition('|')[2]}"]
            rows += change_rows(policy, x, base, sample, metrics)
    return rows


def change_rows(
    policy: str, x: float | str, base: SettingSample, sample: SettingSample, metrics: Sequence[str]
) -> list[Row]:
    """Return changes of metrics in % against other runs, paired by seed."""
    rows = []
    for metric in metrics:
        name, slo_class = split_metric(metric)
        change = difference(base.column(metric), sample.column(metric)).percent
        rows.append(row_of(policy, x, slo_class, f"{name}_change_percent", change))
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV."""
    with replacing(path) as written:
        frame = pd.DataFrame(rows, columns=list(COLUMNS))
        frame["x"] = [f"{x:g}" if isinstance(x, float | int) else x for x in frame["x"]]
        frame.to_csv(written, index=False, float_format="%.6g", lineterminator="\n")
