"""The figures of a sensitivity study."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.metrics.scalars import lookup
from blis_jax.policies import registry
from blis_jax.reports.figures import (
    GUIDE_COLOUR,
    area_handle,
    class_handles,
    class_style,
    figure,
    line_handle,
    panel_each,
    save,
)
from blis_jax.reports.style import BLUE, STRATEGY_COLOURS
from sweeps.robustness.output.words import metric_words
from sweeps.sensitivity.effects import Effect
from sweeps.sensitivity.indices import FIGURES
from sweeps.sensitivity.model import SURROGATE
from sweeps.sensitivity.study import SensitivityStudy, influential
from sweeps.strategies.space import Dimension

if TYPE_CHECKING:
    from matplotlib.axes import Axes


TOTAL, FIRST, NOISE = BLUE, "#a6d4f0", "#4d4d4d"
MARKS = "os^Dv*Ph"  # of parameters, with the palette's colours
COLUMNS = 3
MOST_PARAMETERS = 6  # in the figure of effects
MOST_METRICS = 4  # in the figure of pairs
UNITS = {  # of settings that no policy declares
    "max_num_scheduled_tokens": "tokens",
    "slo_prefill": "tokens",
    "long_prefill_token_threshold": "tokens",
    "total_kv_blocks": "blocks",
}
assert FIGURES == ("estimate", "low", "high")


def draw(study: SensitivityStudy, model: str, folder: Path, strategy: str) -> list[Path]:
    """Draws what one model has to show of a strategy to PNGs in a folder; returns their paths."""
    suffix, by = ("_surrogate", ", by the surrogate") if model == SURROGATE else ("", "")
    made = []
    for name, draw_one in (
        ("indices", draw_indices),
        ("morris", draw_morris),
        ("effects", draw_effects),
        ("pairs", draw_pairs),
    ):
        path = folder / f"{name}{suffix}.png"
        if draw_one(study, model, path, f"{strategy}{by}"):
            made.append(path)
    return made


def draw_indices(study: SensitivityStudy, model: str, path: Path, strategy: str) -> bool:
    """First and total indices of every metric, with intervals; False if there are none."""
    metrics = list(study.findings[model].sobol)
    if not metrics:
        return False
    count = len(study.names)
    caption = (
        "Dark: total index, the share of a metric's variance over the space that the parameter has a "
        "part in. Light: first order, what it explains alone; the gap is interaction. Bars: 95 % "
        f"bootstrap over {study.findings[model].sobol[metrics[0]].num_rows} rows. Dashed: what a dummy gets, "
        "a parameter that only draws new seeds; an interval that reaches it is noise."
    ).replace("95 %", f"{100 * study.resampling.confidence:g} %")
    rows = -(-len(metrics) // COLUMNS)
    title = f"How much of each metric's variance every parameter explains, {strategy}"
    height = 0.55 + 0.3 * count
    caption = study.runs.in_text(caption)
    with _figure(rows, COLUMNS, height, path, title, caption, _index_handles(study)) as panels:
        for panel, metric in panel_each(panels, metrics):
            _draw_bars(panel, study, model, metric)
        for row in panels:
            row[0].set_yticks(range(count), study.names)
    return True


def _draw_bars(panel: Axes, study: SensitivityStudy, model: str, metric: str) -> None:
    indices = study.findings[model].sobol[metric]
    places = np.arange(len(study.names))
    for values, offset, colour, label in (
        (indices.total, -0.19, TOTAL, "total"),
        (indices.first, 0.19, FIRST, "alone (first order)"),
    ):
        panel.barh(places + offset, values[:, 0], 0.36, color=colour, label=label)
        panel.errorbar(
            values[:, 0], places + offset, xerr=_reach(values), fmt="none", ecolor="black",
            elinewidth=0.9, capsize=1.8,
        )  # fmt: skip
    if indices.dummy[2] > 0:
        panel.axvline(indices.dummy[2], color=NOISE, linestyle="--", linewidth=1, label="dummy")
    panel.set_yticks(places, [""] * len(places))
    panel.set_ylim(len(places) - 0.4, -0.6)
    panel.set_xlim(min(0.0, float(indices.first[:, 1].min())) - 0.01, None)
    panel.set_title(_title(metric))
    panel.set_xlabel("share of variance")


def _index_handles(study: SensitivityStudy) -> list[Any]:
    return [
        area_handle("total index", color=TOTAL),
        area_handle("alone (first order)", color=FIRST),
        line_handle(study.runs.in_text("dummy: other seeds only"), color=NOISE, linestyle="--"),
    ]


def draw_morris(study: SensitivityStudy, model: str, path: Path, strategy: str) -> bool:
    """Mean size of elementary effects against their spread; False if there are none."""
    metrics = list(study.findings[model].morris)
    if not metrics:
        return False
    caption = (
        f"Elementary effects of {study.sizes.trajectories} trajectories: the change of a metric for a "
        "step of a parameter, scaled to its whole range. To the right: strong; above the line σ = µ*: "
        "interactions or curvature. Bars: bootstrap over trajectories."
    )
    rows = -(-len(metrics) // COLUMNS)
    title = f"How strongly each parameter acts on every metric, {strategy}"
    noise = study.runs.in_text("a new draw of the seeds")
    legend = [*_parameter_handles(study.names), line_handle(noise, color=NOISE, linestyle="--")]
    with _figure(rows, COLUMNS, 1.95, path, title, study.runs.in_text(caption), legend) as panels:
        for panel, metric in panel_each(panels, metrics):
            _draw_plane(panel, study, model, metric)
    return True


def _draw_plane(panel: Axes, study: SensitivityStudy, model: str, metric: str) -> None:
    found = study.findings[model].morris[metric]
    across, up = found.mu_star, found.sigma
    _draw_points(panel, across, up)
    end = max(float(across[:, 2].max()), 1e-12)
    panel.plot([0, end], [0, end], color=GUIDE_COLOUR, linewidth=0.8, zorder=0)
    if found.dummy > 0:
        panel.axvline(found.dummy, color=NOISE, linestyle="--", linewidth=1)
    top = max(float(up[:, 2].max()), 1e-12)
    panel.set_xlim(0, 1.08 * end)
    panel.set_ylim(0, 1.1 * top)
    panel.set_title(_title(metric))
    unit = lookup(metric)[0].unit
    suffix = f" ({unit})" if unit != "1" else ""
    panel.set_xlabel(f"mean size µ*{suffix}")
    panel.set_ylabel(f"spread σ{suffix}")


def draw_effects(study: SensitivityStudy, model: str, path: Path, strategy: str) -> bool:
    """Means along the parameters that matter most, a line a class; False if there are none."""
    strong = influential(study, model)[:MOST_PARAMETERS]
    families = _families(study, model)
    if not strong or not families:
        return False
    caption = (
        f"Mean along one parameter, the others drawn {study.sizes.bases} times (the same draws at "
        "every level). Band: what other seeds would change between levels; bars: what other draws of "
        f"the other parameters would; both {100 * study.resampling.confidence:g} %, without shifts of "
        "the whole curve, whose height depends on the draws. Parameters that matter most come first"
        + (
            "."
            if len(strong) == len(study.names)
            else "; those not shown matter less or not at all."
        )
    )
    title = f"What changes as one parameter grows, {strategy}"
    legend = class_handles(dict.fromkeys(lookup(metric)[1] or "" for metric in study.metrics))
    with _figure(
        len(families), len(strong), 1.6, path, title, study.runs.in_text(caption), legend
    ) as panels:
        for row, metrics in zip(panels, families, strict=True):
            for panel, name in zip(row, strong, strict=True):
                _draw_curves(panel, study, model, name, metrics)
                panel.sharey(row[0])
                panel.tick_params(labelleft=panel is row[0])
            row[0].set_ylabel(_family_words(metrics[0]))
        for panel, name in zip(panels[-1], strong, strict=True):
            words = _parameter_words(study.dimensions[study.names.index(name)], "\n")
            panel.set_xlabel(words, fontsize=8)
    return True


def _draw_curves(
    panel: Axes, study: SensitivityStudy, model: str, name: str, metrics: Sequence[str]
) -> None:
    place = study.names.index(name)
    effect: Effect = study.findings[model].effects[place]
    dimension = study.dimensions[place]
    across = _positions(dimension, effect.shares)
    for metric in metrics:
        row = study.metrics.index(metric)
        style = class_style(lookup(metric)[1] or "")
        mean, seeds = effect.mean[row], effect.of_seeds[row]
        panel.fill_between(
            across, mean - seeds, mean + seeds, color=style["color"], alpha=0.2, linewidth=0
        )
        panel.errorbar(
            across, mean, yerr=effect.of_points[row], markersize=3, linewidth=1.2, elinewidth=0.7,
            capsize=0, **style,
        )  # fmt: skip
    _name_positions(panel, dimension, "x")


def draw_pairs(study: SensitivityStudy, model: str, path: Path, strategy: str) -> bool:
    """Means over two parameters as maps; False if there are none."""
    pairs = study.findings[model].pairs
    indices = study.findings[model].sobol
    if not pairs or not indices:
        return False

    def strength(metric: str) -> float:
        return max(float(indices[metric].second[pair.places][0]) for pair in pairs)

    metrics = sorted(indices, key=lambda metric: -strength(metric))[:MOST_METRICS]
    caption = (
        f"Mean over two parameters, the others drawn {study.sizes.pair_bases} times, for the pairs with "
        "the largest second-order indices. S: second-order index with its interval, the share of the "
        "variance that both explain together only."
    )
    title = f"Pairs of parameters that act together most, {strategy}"
    with _figure(len(metrics), len(pairs), 2.2, path, title, study.runs.in_text(caption)) as panels:
        for row, metric in zip(panels, metrics, strict=True):
            for panel, pair in zip(row, pairs, strict=True):
                _draw_map(panel, study, metric, pair, indices[metric].second[pair.places])
    return True


def _draw_map(
    panel: Axes, study: SensitivityStudy, metric: str, pair: Any, second: np.ndarray
) -> None:
    values = pair.mean[study.metrics.index(metric)]
    one, other = (study.dimensions[place] for place in pair.places)
    across, up = _positions(one, pair.shares[0]), _positions(other, pair.shares[1])
    image = panel.pcolormesh(across, up, values.T, cmap="viridis", shading="nearest")
    bar = panel.figure.colorbar(image, ax=panel, pad=0.02)
    unit = lookup(metric)[0].unit
    if unit != "1":
        bar.set_label(unit)
    bar.ax.tick_params(labelsize=8)
    _name_positions(panel, one, "x")
    _name_positions(panel, other, "y")
    panel.grid(visible=False)
    panel.set_xlabel(_parameter_words(one))
    panel.set_ylabel(_parameter_words(other))
    numbers = f"S {second[0]:.2f} [{second[1]:.2f}, {second[2]:.2f}]".replace("-", "−")
    panel.set_title(f"{_title(metric)}\n{numbers}", fontsize=8.5, fontweight="normal")


def draw_agreement(
    study: SensitivityStudy, one: str, other: str, path: Path, strategy: str
) -> bool:
    """Total indices of two models against each other; False if they share no metric."""
    found = study.findings[one].sobol, study.findings[other].sobol
    totals = {
        metric: (found[0][metric].total, found[1][metric].total)
        for metric in study.metrics
        if all(metric in each for each in found)
    }
    if totals:
        draw_totals(study.names, totals, (one, other), path, strategy)
    return bool(totals)


def draw_totals(
    names: Sequence[str],
    totals: Mapping[str, tuple[np.ndarray, np.ndarray]],
    models: tuple[str, str],
    path: Path,
    strategy: str,
) -> None:
    """Total indices `[parameter, figure]` of two models by metric, one against the other."""
    one, other = models
    caption = (
        f"A point is a parameter: the share of a metric's variance over the space that the parameter has "
        f"a part in, across by the {one}, up by the {other}, at the same points of the space. Bars: bootstrap "
        "intervals. On the grey line both are equal."
    )
    title = f"Total indices of {strategy}: {other} against {one}"
    rows = -(-len(totals) // COLUMNS)
    legend = _parameter_handles(names)
    with _figure(rows, COLUMNS, 1.95, path, title, caption, legend) as panels:
        for place, (panel, metric) in enumerate(panel_each(panels, list(totals))):
            across, up = totals[metric]
            most = float(max(across[:, 2].max(), up[:, 2].max(), 0.1))
            panel.plot([0, most], [0, most], color=GUIDE_COLOUR, linewidth=0.8, zorder=0)
            _draw_points(panel, across, up)
            panel.set_title(_title(metric))
            panel.set_xlabel(f"total index, {one}")
            if place % COLUMNS == 0:
                panel.set_ylabel(f"total index, {other}")


# --- parts ----------------------------------------------------------------------------------------


def _draw_points(panel: Axes, across: np.ndarray, up: np.ndarray) -> None:
    """A point with bars for each parameter, from `[parameter, figure]`."""
    for at in range(len(across)):
        panel.errorbar(
            across[at, 0], up[at, 0], xerr=_reach(across[at : at + 1]), yerr=_reach(up[at : at + 1]),
            ecolor="0.6", markersize=5, elinewidth=0.9, linestyle="none", **_parameter_style(at),
        )  # fmt: skip


def _parameter_style(place: int) -> dict[str, Any]:
    palette = STRATEGY_COLOURS[1:]  # grey is the bars'
    return {"color": palette[place % len(palette)], "marker": MARKS[place % len(MARKS)]}


def _parameter_handles(names: Sequence[str]) -> list[Any]:
    return [
        line_handle(name, linestyle="none", **_parameter_style(at)) for at, name in enumerate(names)
    ]


@contextmanager
def _figure(
    rows: int,
    columns: int,
    height: float,
    path: Path,
    title: str,
    caption: str,
    legend: Sequence[Any] = (),
) -> Iterator[Any]:
    """Panels `[row][column]`, as high as given in inches; saved with its words when the block ends."""
    with figure(rows * (height + 0.45), rows, columns) as (made, panels):
        yield panels
        save(made, path, title, caption, legend)


def _families(study: SensitivityStudy, model: str) -> list[list[str]]:
    """Metrics that differ in their class only, together; those that never vary are left out."""
    families: dict[str, list[str]] = {}
    for metric in study.findings[model].sobol:
        families.setdefault(lookup(metric)[0].name, []).append(metric)
    return list(families.values())


def _parameter_words(dimension: Dimension, between: str = " ") -> str:
    """A parameter's name with the unit of its values."""
    known = registry.settings().get(dimension.target)
    unit = known.number.unit if known is not None and known.number is not None else ""
    for start, of_setting in UNITS.items():
        if not unit and dimension.target.startswith(start):
            unit = of_setting
    return f"{dimension.name}{between}({unit})" if unit else dimension.name


def _positions(dimension: Dimension, shares: np.ndarray) -> np.ndarray:
    """Where values stand on an axis: choices one after the other."""
    if dimension.kind == "categorical":
        return np.arange(len(shares), dtype=float)
    return np.array([dimension.at(float(share)) for share in shares], float)


def _short_number(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:,g}"


def _name_positions(panel: Axes, dimension: Dimension, axis: str) -> None:
    from matplotlib.ticker import MaxNLocator

    if dimension.kind == "categorical":
        words = [str(value) for value in dimension.categories]
        getattr(panel, f"set_{axis}ticks")(range(len(words)), words)
    elif dimension.is_log:
        getattr(panel, f"set_{axis}scale")("log")
    else:
        ruler = getattr(panel, f"{axis}axis")
        ruler.set_major_locator(MaxNLocator(3))
        ruler.set_major_formatter(_short_number)


def _title(metric: str) -> str:
    found, slo_class = lookup(metric)
    words = metric_words(found.name)
    return words[0].upper() + words[1:] + (f", {slo_class}" if slo_class else "")


def _family_words(metric: str) -> str:
    found, _ = lookup(metric)
    unit = f"\n({found.unit})" if found.unit != "1" else ""
    words = textwrap.fill(metric_words(found.name), 18)
    return words[0].upper() + words[1:] + unit


def _reach(figures: np.ndarray) -> np.ndarray:
    """Lengths of error bars from `[…, figure]`."""
    low, high = figures[:, 0] - figures[:, 1], figures[:, 2] - figures[:, 0]
    return np.maximum(np.stack([low, high]), 0.0)
