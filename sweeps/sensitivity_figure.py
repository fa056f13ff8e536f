"""The figures of a sensitivity study."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from blis_jax.atomic_write import replacing
from blis_jax.scalar_metrics import lookup
from sweeps.robustness_words import metric_words
from sweeps.sensitivity_effects import Effect
from sweeps.sensitivity_indices import FIGURES
from sweeps.sensitivity_model import SURROGATE
from sweeps.sensitivity_study import Study, influential
from sweeps.space import Dimension

TOTAL, FIRST, OTHER, NOISE = "#0072b2", "#a6d4f0", "#d55e00", "#4d4d4d"
CLASS_COLOURS = {
    "critical": "#d55e00",
    "standard": "#0072b2",
    "sheddable": "#009e73",
    "batch": "#cc79a7",
    "background": "#e69f00",
    None: "#000000",
}
COLUMNS = 3
MOST_PARAMETERS = 6  # in the figure of effects
MOST_METRICS = 4  # in the figure of pairs
LETTERS_PER_INCH = 16.0
assert FIGURES == ("estimate", "low", "high")


def draw(study: Study, model: str, folder: Path, title: str) -> list[Path]:
    """Draws what one model has to show to PNGs in a folder; returns their paths."""
    made = []
    for name, draw_one in (
        ("indices", draw_indices),
        ("morris", draw_morris),
        ("effects", draw_effects),
        ("pairs", draw_pairs),
    ):
        path = folder / (f"{name}.png" if model != SURROGATE else f"{name}_surrogate.png")
        if draw_one(study, model, path, title):
            made.append(path)
    return made


def draw_indices(study: Study, model: str, path: Path, title: str) -> bool:
    """First and total indices of every metric, with intervals; False if there are none."""
    metrics = list(study.findings[model].sobol)
    if not metrics:
        return False
    count = len(study.names)
    caption = (
        "Dark: total index, the share of a metric's variance over the space that the parameter has a "
        "part in. Light: first order, what it explains alone; the gap is interaction. Bars: 95 % "
        f"bootstrap over {study.findings[model].sobol[metrics[0]].num_rows} rows. Dashed: what a dummy "
        "gets that only draws the seeds anew; intervals that reach it are noise."
    ).replace("95 %", f"{100 * study.resampling.confidence:g} %")
    rows = -(-len(metrics) // COLUMNS)
    with _figure(rows, COLUMNS, (3.0, 0.55 + 0.3 * count), path, title, caption) as panels:
        for panel, metric in _pairs_of(panels, metrics):
            _draw_bars(panel, study, model, metric)
        for row in panels:
            row[0].set_yticks(range(count), study.names)
        _legend(panels[0][0].figure, _index_handles())
    return True


def _draw_bars(panel: Any, study: Study, model: str, metric: str) -> None:
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


def _index_handles() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Patch(color=TOTAL, label="total index"),
        Patch(color=FIRST, label="alone (first order)"),
        Line2D([], [], color=NOISE, linestyle="--", label="dummy: other seeds only"),
    ]


def draw_morris(study: Study, model: str, path: Path, title: str) -> bool:
    """Mean size of elementary effects against their spread; False if there are none."""
    metrics = list(study.findings[model].morris)
    if not metrics:
        return False
    caption = (
        f"Elementary effects of {study.sizes.trajectories} trajectories: the change of a metric for a "
        "step of a parameter, scaled to its whole range. To the right: strong; above the line σ = µ*: "
        "interactions or curvature. Bars: bootstrap over trajectories. Dashed: mean size that a new "
        "draw of the seeds gives."
    )
    rows = -(-len(metrics) // COLUMNS)
    with _figure(rows, COLUMNS, (3.2, 2.6), path, title, caption) as panels:
        for panel, metric in _pairs_of(panels, metrics):
            _draw_plane(panel, study, model, metric)
    return True


def _draw_plane(panel: Any, study: Study, model: str, metric: str) -> None:
    found = study.findings[model].morris[metric]
    across, up = found.mu_star, found.sigma
    panel.errorbar(
        across[:, 0], up[:, 0], xerr=_reach(across), yerr=_reach(up), fmt="o", color=TOTAL,
        ecolor="0.65", elinewidth=0.9, markersize=4,
    )  # fmt: skip
    end = max(float(across[:, 2].max()), 1e-12)
    panel.plot([0, end], [0, end], color="0.75", linewidth=0.8, zorder=0)
    if found.dummy > 0:
        panel.axvline(found.dummy, color=NOISE, linestyle="--", linewidth=1)
    top = max(float(up[:, 2].max()), 1e-12)
    strong = np.argsort(-across[:, 0])[: min(5, len(study.names))]
    for rank, place in enumerate(strong):
        if across[place, 0] > 0.03 * end:
            panel.annotate(
                study.names[place], (across[place, 0], up[place, 0]), fontsize=7,
                textcoords="offset points", xytext=(4, -9 if rank % 2 else 4),
            )  # fmt: skip
    panel.set_xlim(0, 1.25 * end)
    panel.set_ylim(0, 1.1 * top)
    panel.set_title(_title(metric))
    unit = lookup(metric)[0].unit
    suffix = f" ({unit})" if unit != "1" else ""
    panel.set_xlabel(f"mean size µ*{suffix}")
    panel.set_ylabel(f"spread σ{suffix}")


def draw_effects(study: Study, model: str, path: Path, title: str) -> bool:
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
    size = (max(1.9, 8.4 / len(strong)), 1.75)
    with _figure(len(families), len(strong), size, path, title, caption) as panels:
        for row, metrics in zip(panels, families, strict=True):
            for panel, name in zip(row, strong, strict=True):
                _draw_curves(panel, study, model, name, metrics)
                panel.sharey(row[0])
            row[0].set_ylabel(_family_words(metrics[0]))
        for panel, name in zip(panels[-1], strong, strict=True):
            panel.set_xlabel(name)
        _class_legend(panels, study)
    return True


def _draw_curves(panel: Any, study: Study, model: str, name: str, metrics: Sequence[str]) -> None:
    place = study.names.index(name)
    effect: Effect = study.findings[model].effects[place]
    dimension = study.dimensions[place]
    across = _positions(dimension, effect.shares)
    for metric in metrics:
        row = study.metrics.index(metric)
        colour = CLASS_COLOURS[lookup(metric)[1]]
        mean, seeds = effect.mean[row], effect.of_seeds[row]
        panel.fill_between(across, mean - seeds, mean + seeds, color=colour, alpha=0.2, linewidth=0)
        panel.errorbar(
            across, mean, yerr=effect.of_points[row], color=colour, marker="o", markersize=2.5,
            linewidth=1.2, elinewidth=0.7, capsize=0,
        )  # fmt: skip
    _name_positions(panel, dimension, "x")


def draw_pairs(study: Study, model: str, path: Path, title: str) -> bool:
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
    size = (3.1, 2.35)
    with _figure(len(metrics), len(pairs), size, path, title, caption) as panels:
        for row, metric in zip(panels, metrics, strict=True):
            for panel, pair in zip(row, pairs, strict=True):
                _draw_map(panel, study, metric, pair, indices[metric].second[pair.places])
    return True


def _draw_map(panel: Any, study: Study, metric: str, pair: Any, second: np.ndarray) -> None:
    values = pair.mean[study.metrics.index(metric)]
    one, other = (study.dimensions[place] for place in pair.places)
    across, up = _positions(one, pair.shares[0]), _positions(other, pair.shares[1])
    image = panel.pcolormesh(across, up, values.T, cmap="viridis", shading="nearest")
    bar = panel.figure.colorbar(image, ax=panel, pad=0.02)
    unit = lookup(metric)[0].unit
    bar.ax.set_title(unit if unit != "1" else "", fontsize=7)
    bar.ax.tick_params(labelsize=7)
    _name_positions(panel, one, "x")
    _name_positions(panel, other, "y")
    panel.grid(visible=False)
    panel.set_xlabel(one.name)
    panel.set_ylabel(other.name)
    numbers = f"S {second[0]:.3f} [{second[1]:.3f}, {second[2]:.3f}]".replace("-", "−")
    panel.set_title(f"{_title(metric)}\n{numbers}", fontsize=8)


LEAST_NAMED = 0.1  # of the panel's reach
PANEL_POINTS, LINE_POINTS = 130.0, 8.0  # height of a panel of agreement, and of a name


def draw_agreement(study: Study, one: str, other: str, path: Path, title: str) -> bool:
    """Total indices of two models against each other; False if they share no metric."""
    found = study.findings[one].sobol, study.findings[other].sobol
    metrics = [metric for metric in study.metrics if all(metric in each for each in found)]
    if not metrics:
        return False
    caption = (
        f"Total indices of the {one} and of the {other} at the same points, with bootstrap intervals; "
        "on the grey line they are equal."
    )
    rows = -(-len(metrics) // COLUMNS)
    with _figure(rows, COLUMNS, (2.9, 2.6), path, title, caption) as panels:
        for panel, metric in _pairs_of(panels, metrics):
            across, up = (each[metric].total for each in found)
            most = float(max(across[:, 2].max(), up[:, 2].max(), 0.1))
            panel.plot([0, most], [0, most], color="0.75", linewidth=0.8, zorder=0)
            panel.errorbar(
                across[:, 0], up[:, 0], xerr=_reach(across), yerr=_reach(up), fmt="o",
                color=OTHER, ecolor="0.6", markersize=4, elinewidth=0.9,
            )  # fmt: skip
            _name_points(panel, study.names, across[:, 0], up[:, 0], most)
            panel.set_title(_title(metric))
            panel.set_xlabel(f"total index, {one}")
            panel.set_ylabel(f"total index, {other}")
    return True


# --- parts ----------------------------------------------------------------------------------------


def _name_points(
    panel: Any, names: Sequence[str], across: np.ndarray, up: np.ndarray, most: float
) -> None:
    """Names beside the points that matter, from above; none within a line of the one before."""
    before = np.inf
    for place in np.argsort(-up, kind="stable"):
        if max(across[place], up[place]) <= LEAST_NAMED * most:
            continue  # these would lie on each other
        height = up[place] / most * PANEL_POINTS
        here = min(height - LINE_POINTS, before - LINE_POINTS)
        panel.annotate(
            names[place], (across[place], up[place]), fontsize=7,
            textcoords="offset points", xytext=(4, here - height),
        )  # fmt: skip
        before = here


@contextmanager
def _figure(
    rows: int, columns: int, size: tuple[float, float], path: Path, title: str, caption: str
) -> Iterator[Any]:
    """Panels `[row][column]` of a size in inches; saved with its words when the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {
        "font.size": 8,
        "axes.titlesize": 8.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "0.92",
        "legend.frameon": False,
    }
    width = max(columns * size[0] + 0.6, 5.5)
    lines = textwrap.wrap(caption, int(LETTERS_PER_INCH * width))
    below, above = 0.145 * len(lines) + 0.12, 0.5
    height = rows * (size[1] + 0.45) + below + above
    with rc_context(style):
        figure = Figure(figsize=(width, height))
        panels = figure.subplots(rows, columns, squeeze=False)
        yield panels
        figure.text(0.01, 1 - 0.07 / height, title, fontsize=10.5, va="top", fontweight="bold")
        figure.text(0.01, 0.05 / height, "\n".join(lines), fontsize=7.5, color="0.3", va="bottom")
        figure.tight_layout(rect=(0, below / height, 1, 1 - above / height), h_pad=1.3)
        with replacing(path) as written:
            figure.savefig(written, dpi=140, format="png")


def _pairs_of(panels: Any, metrics: Sequence[str]) -> Iterator[tuple[Any, str]]:
    """A panel for each metric; those that are left are taken out."""
    flat = [panel for row in panels for panel in row]
    for panel in flat[len(metrics) :]:
        panel.set_axis_off()
    return zip(flat, metrics, strict=False)


def _families(study: Study, model: str) -> list[list[str]]:
    """Metrics that differ in their class only, together; those that never vary are left out."""
    families: dict[str, list[str]] = {}
    for metric in study.findings[model].sobol:
        families.setdefault(lookup(metric)[0].name, []).append(metric)
    return list(families.values())


def _class_legend(panels: Any, study: Study) -> None:
    from matplotlib.lines import Line2D

    classes = list(dict.fromkeys(lookup(metric)[1] for metric in study.metrics))
    handles = [
        Line2D([], [], color=CLASS_COLOURS[name], label=name or "all requests") for name in classes
    ]
    _legend(panels[0][0].figure, handles)


def _legend(figure: Any, handles: Sequence[Any]) -> None:
    top = 1 - 0.24 / figure.get_size_inches()[1]
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.005, top), ncols=len(handles)
    )


def _positions(dimension: Dimension, shares: np.ndarray) -> np.ndarray:
    """Where values stand on an axis: choices one after the other."""
    if dimension.kind == "categorical":
        return np.arange(len(shares), dtype=float)
    return np.array([dimension.at(float(share)) for share in shares], float)


def _name_positions(panel: Any, dimension: Dimension, axis: str) -> None:
    if dimension.kind == "categorical":
        words = [str(value) for value in dimension.categories]
        getattr(panel, f"set_{axis}ticks")(range(len(words)), words)
    elif dimension.is_log:
        getattr(panel, f"set_{axis}scale")("log")


def _title(metric: str) -> str:
    words = metric_words(metric)
    return words[0].upper() + words[1:]


def _family_words(metric: str) -> str:
    found, _ = lookup(metric)
    unit = f"\n({found.unit})" if found.unit != "1" else ""
    words = textwrap.fill(metric_words(found.name), 18)
    return words[0].upper() + words[1:] + unit


def _reach(figures: np.ndarray) -> np.ndarray:
    """Lengths of error bars from `[…, figure]`."""
    low, high = figures[:, 0] - figures[:, 1], figures[:, 2] - figures[:, 0]
    return np.maximum(np.stack([low, high]), 0.0)
