"""The pictures of a sensitivity study."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from blis_jax.errors import capital
from blis_jax.files.atomic_write import plain
from blis_jax.metrics.scalars import lookup
from blis_jax.policies import registry
from blis_jax.reports.pictures import Axis, Bars, Guide, Mark, Panel, Picture, Series, Style, Tiles
from blis_jax.reports.style import BLUE, GUIDE_COLOUR, STRATEGY_COLOURS, class_style, class_words
from blis_jax.reports.words import metric_words, unit_text
from sweeps.sensitivity.indices import FIGURES
from sweeps.sensitivity.model import SIMULATOR, SURROGATE
from sweeps.sensitivity.study import SensitivityStudy, influential
from sweeps.strategies.space import Dimension

TOTAL, FIRST, NOISE = BLUE, "#a6d4f0", "#4d4d4d"
DIAGONAL = Style(GUIDE_COLOUR, line="-", width=0.8)
DUMMY = Style(NOISE, line="--", width=1.0)
MARKS = "os^Dv*Ph"  # of parameters, with the palette's colours
COLUMNS = 3
MOST_PARAMETERS = 6  # in the figure of effects
MOST_MAPS = 6  # in the figure of pairs
WORDS_INCHES = 0.45  # of a row of panels, beside its axes
UNITS = {  # of settings that no policy declares
    "max_num_scheduled_tokens": "tokens",
    "slo_prefill": "tokens",
    "long_prefill_token_threshold": "tokens",
    "total_kv_blocks": "blocks",
}
assert FIGURES == ("estimate", "low", "high")
# of two models `[parameter, figure]`, by metric
Totals = Mapping[str, tuple[np.ndarray, np.ndarray]]


def pictures(study: SensitivityStudy, strategy: str) -> tuple[Picture, ...]:
    """Return the pictures of every model's findings on a strategy, each named like its file."""
    drawn: list[Picture | None] = []
    for model in study.findings:
        suffix, by = ("_surrogate", ", by the surrogate") if model == SURROGATE else ("", "")
        for make in (indices, morris, effects, pairs):
            drawn.append(make(study, model, f"{strategy}{by}", f"{make.__name__}{suffix}"))
    if len(study.findings) > 1:
        drawn.append(_agreement(study, strategy))
    return tuple(picture for picture in drawn if picture is not None)


def indices(study: SensitivityStudy, model: str, strategy: str, name: str) -> Picture | None:
    """Return the picture of first-order and total indices of every metric, with intervals; None without indices."""
    sobol = study.findings[model].sobol
    if not sobol:
        return None
    num_rows = next(iter(sobol.values())).num_rows
    caption = (
        "Dark: total index, the share of a metric's variance over the space that the parameter has a "
        "part in. Light: first order, what it explains alone; the gap is interaction. Bars: "
        f"{100 * study.resampling.confidence:g} % bootstrap over {num_rows} rows. Dashed: what a dummy gets, "
        "a parameter that only draws new seeds; an interval that reaches it is noise."
    )
    panels = [_bars(study, model, metric, at % COLUMNS == 0) for at, metric in enumerate(sobol)]
    return _grid(
        f"How much of each metric's variance every parameter explains, {strategy}",
        study.runs.in_text(caption), panels, 0.55 + 0.3 * len(study.names), name,
    )  # fmt: skip


def _bars(study: SensitivityStudy, model: str, metric: str, is_first: bool) -> Panel:
    sobol = study.findings[model].sobol[metric]
    marks: list[Mark] = []
    for values, offset, colour, label in (
        (sobol.total, -0.19, TOTAL, "total index"),
        (sobol.first, 0.19, FIRST, "alone (first order)"),
    ):
        rows = [at + offset for at in range(len(study.names))]
        shares, low, high = _columns(values)
        marks.append(Bars(rows, shares, Style(colour), label, height=0.36))
        marks.append(Series(shares, rows, Style(width=0.9), x_low=low, x_high=high))
    if sobol.dummy[2] > 0:
        words = study.runs.in_text("dummy: other seeds only")
        marks.append(Guide(float(sobol.dummy[2]), "x", DUMMY, words))
    ticks = [(float(at), name if is_first else "") for at, name in enumerate(study.names)]
    return Panel(
        marks,
        Axis("share of variance", limits=(min(0.0, float(sobol.first[:, 1].min())) - 0.01, None)),
        Axis(ticks=ticks, limits=(len(ticks) - 0.4, -0.6)),
        _title(metric),
    )


def morris(study: SensitivityStudy, model: str, strategy: str, name: str) -> Picture | None:
    """Return the picture of the mean size of elementary effects against their spread; None without effects."""
    effects = study.findings[model].morris
    if not effects:
        return None
    caption = (
        f"Elementary effects of {study.sizes.trajectories} trajectories: the change of a metric for a "
        "step of a parameter, scaled to its whole range. To the right: strong; above the line σ = µ*: "
        "interactions or curvature. Bars: bootstrap over trajectories."
    )
    panels = [_plane(study, model, metric) for metric in effects]
    title = f"How strongly each parameter acts on every metric, {strategy}"
    return _grid(title, study.runs.in_text(caption), panels, 1.95, name)


def _plane(study: SensitivityStudy, model: str, metric: str) -> Panel:
    effects = study.findings[model].morris[metric]
    across, up = effects.mu_star, effects.sigma
    end, top = max(float(across[:, 2].max()), 1e-12), max(float(up[:, 2].max()), 1e-12)
    marks: list[Mark] = [Guide(end, "diagonal", DIAGONAL), *_points(study.names, across, up)]
    if effects.dummy > 0:
        words = study.runs.in_text("a new draw of the seeds")
        marks.append(Guide(float(effects.dummy), "x", DUMMY, words))
    suffix = unit_text(lookup(metric)[0].unit, " ({})")
    x = Axis(f"mean size µ*{suffix}", limits=(0.0, 1.08 * end))
    return Panel(marks, x, Axis(f"spread σ{suffix}", limits=(0.0, 1.1 * top)), _title(metric))


def effects(study: SensitivityStudy, model: str, strategy: str, name: str) -> Picture | None:
    """Return the picture of means along the parameters that matter most, one line per class; None without effects."""
    strong = influential(study, model)[:MOST_PARAMETERS]
    families = _families(study, model)
    if not strong or not families:
        return None
    is_all = len(strong) == len(study.names)
    caption = (
        f"Mean along one parameter, the others drawn {study.sizes.bases} times (the same draws at "
        "every level). Band: what other seeds would change between levels; bars: what other draws of "
        f"the other parameters would; both {100 * study.resampling.confidence:g} %, without shifts of "
        "the whole curve, whose height depends on the draws. Parameters that matter most come first"
        f"{'.' if is_all else '; those not shown matter less or not at all.'}"
    )
    panels = [
        [_curves(study, model, name, metrics, row, at) for at, name in enumerate(strong)]
        for row, metrics in enumerate(families, start=1 - len(families))
    ]
    return Picture(
        f"What changes as one parameter grows, {strategy}", study.runs.in_text(caption), panels,
        [1.6 + WORDS_INCHES] * len(panels), shares_y="row", name=name,
    )  # fmt: skip


def _curves(
    study: SensitivityStudy, model: str, name: str, metrics: Sequence[str], row: int, column: int
) -> Panel:
    """Return a panel of means along one parameter; row 0 is the bottom row, which shows the parameter's name."""
    place = study.names.index(name)
    effect, dimension = study.findings[model].effects[place], study.dimensions[place]
    across = _positions(dimension, effect.shares).tolist()
    marks: list[Mark] = []
    for metric in metrics:
        at, slo_class = study.metrics.index(metric), lookup(metric)[1] or ""
        look = class_style(slo_class)
        mean, seeds, points = effect.mean[at], effect.of_seeds[at], effect.of_points[at]
        line = Style(look["color"], look["marker"], look["linestyle"], 1.2, 3.0)
        band = Style(look["color"])
        low, high = plain(mean - seeds), plain(mean + seeds)
        marks.append(Series(across, plain(mean), band, y_low=low, y_high=high, has_band=True))
        low, high = plain(mean - points), plain(mean + points)
        marks.append(
            Series(across, plain(mean), line, class_words(slo_class), y_low=low, y_high=high)
        )
    x = _axis(dimension, _parameter_words(dimension, "\n") if row == 0 else "")
    return Panel(marks, x, Axis(_family_words(metrics[0]) if column == 0 else ""))


def pairs(study: SensitivityStudy, model: str, strategy: str, name: str) -> Picture | None:
    """Return maps of means over two parameters, for pairs that interact beyond noise; None if no pair does."""
    effects, sobol = study.findings[model].pairs, study.findings[model].sobol
    maps = [
        (float(indices.second[pair.places][0]), metric, pair)
        for metric, indices in sobol.items()
        for pair in effects
        if indices.act_together(*pair.places)
    ]
    if not maps:
        return None
    strongest = sorted(maps, key=lambda entry: -entry[0])[:MOST_MAPS]
    caption = (
        f"Mean over two parameters, the others drawn {study.sizes.pair_bases} times, for the pairs and metrics with "
        "the largest second-order indices of those beyond noise. S: second-order index with its interval, the share of "
        "the variance that both explain together only."
    )
    panels = [
        _map(study, metric, pair, sobol[metric].second[pair.places])
        for _, metric, pair in strongest
    ]
    title = f"Pairs of parameters that act together most, {strategy}"
    return _grid(title, study.runs.in_text(caption), panels, 2.2, name)


def _map(study: SensitivityStudy, metric: str, pair: Any, second: np.ndarray) -> Panel:
    values = pair.mean[study.metrics.index(metric)]
    first, other = (study.dimensions[place] for place in pair.places)
    edges = [
        _edges(_positions(dimension, shares), dimension.is_log)
        for dimension, shares in zip((first, other), pair.shares, strict=True)
    ]
    unit = unit_text(lookup(metric)[0].unit, "{}")
    tiles = Tiles(edges[0], edges[1], plain(values.T), "viridis", unit=unit)
    numbers = f"S {second[0]:.2f} [{second[1]:.2f}, {second[2]:.2f}]".replace("-", "−")
    return Panel(
        [tiles], _axis(first, _parameter_words(first, "\n")), _axis(other, _parameter_words(other, "\n")),
        f"{_title(metric)}\n{numbers}",
    )  # fmt: skip


def _edges(places: np.ndarray, is_log: bool) -> list[float]:
    """Return the edges of tiles around these positions."""
    at = np.log(places) if is_log else places
    middles = (at[1:] + at[:-1]) / 2
    ends = np.concatenate([[2 * at[0] - middles[0]], middles, [2 * at[-1] - middles[-1]]])
    edges: list[float] = (np.exp(ends) if is_log else ends).tolist()
    return edges


def _agreement(study: SensitivityStudy, strategy: str) -> Picture | None:
    """Return the picture of both models' total indices against each other; None if the models share no metric."""
    both = study.findings[SIMULATOR].sobol, study.findings[SURROGATE].sobol
    shared = {
        metric: (both[0][metric].total, both[1][metric].total)
        for metric in study.metrics
        if all(metric in each for each in both)
    }
    return totals(study.names, shared, (SIMULATOR, SURROGATE), strategy) if shared else None


def totals(
    names: Sequence[str], indices_of: Totals, models: tuple[str, str], strategy: str
) -> Picture:
    """Return the picture of the total indices of two models, one model per axis."""
    first, other = models
    panels = []
    for place, (metric, (across, up)) in enumerate(indices_of.items()):
        most = float(max(across[:, 2].max(), up[:, 2].max(), 0.1))
        y = Axis(f"total index, {other}" if place % COLUMNS == 0 else "")
        marks: list[Mark] = [Guide(most, "diagonal", DIAGONAL), *_points(names, across, up)]
        panels.append(Panel(marks, Axis(f"total index, {first}"), y, _title(metric)))
    caption = (
        f"A point is a parameter: the share of a metric's variance over the space that the parameter has "
        f"a part in, across by the {first}, up by the {other}, at the same points of the space. Bars: bootstrap "
        "intervals. On the grey line both are equal."
    )
    title = f"Total indices of {strategy}: {other} against {first}"
    return _grid(title, caption, panels, 1.95, "agreement")


# --- parts ----------------------------------------------------------------------------------------


def _grid(title: str, caption: str, panels: Sequence[Panel], height: float, name: str) -> Picture:
    """Return a picture of panels in a grid, row by row."""
    rows = [panels[at : at + COLUMNS] for at in range(0, len(panels), COLUMNS)]
    filled = [[*row, *[None] * (COLUMNS - len(row))] for row in rows]
    return Picture(title, caption, filled, [height + WORDS_INCHES] * len(rows), name=name)


def _points(names: Sequence[str], across: np.ndarray, up: np.ndarray) -> Iterator[Series]:
    """Yield a point with error bars for each parameter, from `[parameter, figure]`."""
    palette = STRATEGY_COLOURS[1:]  # grey is the bars'
    (x, x_low, x_high), (y, y_low, y_high) = _columns(across), _columns(up)
    for at, name in enumerate(names):
        style = Style(palette[at % len(palette)], MARKS[at % len(MARKS)], width=0.9)
        here = slice(at, at + 1)
        yield Series(
            x[here], y[here], style, name, x_low[here], x_high[here], y_low[here], y_high[here]
        )


def _columns(values: np.ndarray) -> tuple[list[float], list[float], list[float]]:
    """Return estimates and the ends of their intervals, widened to contain the estimates."""
    estimate, low, high = values.T
    return plain(estimate), plain(np.minimum(low, estimate)), plain(np.maximum(high, estimate))


def _families(study: SensitivityStudy, model: str) -> list[list[str]]:
    """Return groups of metrics that differ in their class only; metrics that never vary are left out."""
    families: dict[str, list[str]] = {}
    for metric in study.findings[model].sobol:
        families.setdefault(lookup(metric)[0].name, []).append(metric)
    return list(families.values())


def _parameter_words(dimension: Dimension, between: str = " ") -> str:
    """Return a parameter's name, followed by the unit of its values if it has one."""
    known = registry.settings().get(dimension.target)
    unit = known.number.unit if known is not None and known.number is not None else ""
    for start, of_setting in UNITS.items():
        if not unit and dimension.target.startswith(start):
            unit = of_setting
    return f"{dimension.name}{between}({unit})" if unit else dimension.name


def _positions(dimension: Dimension, shares: np.ndarray) -> np.ndarray:
    """Return the positions of values on an axis; choices are evenly spaced."""
    if dimension.kind == "categorical":
        return np.arange(len(shares), dtype=float)
    return np.array([dimension.at(float(share)) for share in shares], float)


def _axis(dimension: Dimension, label: str) -> Axis:
    if dimension.kind == "categorical":
        ticks = [(float(at), str(value)) for at, value in enumerate(dimension.categories)]
        return Axis(label, ticks=ticks)
    return Axis(label, "log") if dimension.is_log else Axis(label, most_ticks=3)


def _title(metric: str) -> str:
    metric_found, slo_class = lookup(metric)
    words = metric_words(metric_found.name)
    return capital(words) + (f", {slo_class}" if slo_class else "")


def _family_words(metric: str) -> str:
    metric_found, _ = lookup(metric)
    unit = unit_text(metric_found.unit, "\n({})")
    words = textwrap.fill(metric_words(metric_found.name), 18)
    return capital(words) + unit
