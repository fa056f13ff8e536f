"""The robustness map as heat maps: colours show the size of the change, marks the recommended strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
import yaml

from blis_jax.errors import ConfigError, closest
from blis_jax.files.atomic_write import plain
from blis_jax.metrics.metric import LOWER
from blis_jax.reports.pictures import Axis, Bars, Mark, Panel, Picture, Series, Style, Tiles
from blis_jax.reports.study import RunWords, run_words
from blis_jax.reports.style import strategy_colours
from blis_jax.reports.words import joined, metric_words
from sweeps.claims.words import UNDECIDED
from sweeps.robustness.cells import BY_NAME, kinds_in
from sweeps.robustness.verdict import NONE
from sweeps.runs.axes import StudyAxis

MARKS = "os^DvP*"
NO_COMPARISON = "0.55"
# ColorBrewer's BrBG from teal to brown, told apart by colour-blind readers; the middle unlike a blank tile
COLOURS = ("#015d54", "#44a299", "#abdfd7", "#dedede", "#edd9a8", "#c58e3d", "#804a09")
STEPS = (-60.0, -30.0, -10.0, 10.0, 30.0, 60.0)  # %, between the colours
STEP_WORDS = (
    "over 60 % better", "30 to 60 % better", "10 to 30 % better", "within 10 %",
    "10 to 30 % worse", "30 to 60 % worse", "over 60 % worse",
)  # fmt: skip
LEAST_FILLED = 0.6  # of the tiles; with fewer, heat maps are drawn together
MOST_PANELS = (8, 8)  # columns, rows
TILE_INCHES = 0.22  # height
LEAST_INCHES = 1.7  # of a row of panels, beside which its words have room


@dataclass(frozen=True)
class MapView:
    """The axes of each heat map, and the facets: axes with one column or row of heat maps per value."""

    x: str = "kv_blocks"
    y: str = "rate"
    column: str | None = "shape"
    row: str | None = "instances"

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the axes that are drawn."""
        return tuple(name for name in (self.x, self.y, self.column, self.row) if name is not None)


def read_view(map_axes: str, map_facets: str, axes: Sequence[StudyAxis]) -> MapView:
    """Return the view with axes `X,Y` and facets `COLUMN,ROW`.

    Raises:
        ConfigError: an axis is unknown or named twice, or a facet has too many values to draw.
    """
    names, known = [], [axis.name for axis in axes]
    for option, text in (("--map-axes", map_axes), ("--map-facets", map_facets)):
        parts = [part.strip().replace("-", "_") for part in text.split(",")]
        for part in parts:
            if part not in known:
                raise ConfigError(
                    f"{option}: {part!r} is not an axis; use two of {', '.join(known)}"
                    f"{closest(part, known)}"
                )
        if len(parts) != 2:
            raise ConfigError(f"{option}: {text!r} does not name two axes")
        names += parts
    if len(set(names)) < 4:
        raise ConfigError(
            "--map-axes and --map-facets name an axis twice; give four different ones"
        )
    sizes = {axis.name: len(axis.values) for axis in axes}
    for name, most, what in zip(names[2:], MOST_PANELS, ("columns", "rows"), strict=True):
        if sizes[name] > most:
            raise ConfigError(
                f"--map-facets: {name} has {sizes[name]} values, and {most} {what} can be drawn; "
                "give other facets, or --figure none"
            )
    return MapView(*names)


def picture(verdicts: xr.Dataset, view: MapView) -> Picture:
    """Return the map: a heat map for each column and row of the view."""
    view = filled(verdicts, view)
    columns, rows = (_values(verdicts, name) for name in (view.column, view.row))
    height = TILE_INCHES * len(_values(verdicts, view.y)) + 0.15 + 0.7 / len(rows)
    height = max(height, LEAST_INCHES)
    panels = [
        [_panel(verdicts, view, (row, column)) for column in range(len(columns))]
        for row in range(len(rows))
    ]
    return Picture(
        _heading(verdicts), _caption(verdicts, view), panels, [height] * len(rows), shares_x="all",
        shares_y="all", key=_legend(verdicts), name="map",
    )  # fmt: skip


def filled(verdicts: xr.Dataset, view: MapView) -> MapView:
    """Return the view without facets that would leave many tiles blank."""
    for narrower in (view, replace(view, row=None), replace(view, row=None, column=None)):
        num_tiles = int(np.prod([len(_values(verdicts, name)) for name in narrower.axes]))
        seen = set(zip(*(verdicts[name].values.tolist() for name in narrower.axes), strict=True))
        if len(seen) >= LEAST_FILLED * num_tiles:
            return narrower
    return replace(view, row=None, column=None)


def _values(verdicts: xr.Dataset, name: str | None) -> list[Any]:
    """Return the axis's values in the cells, numbers in order; [None] for no axis."""
    if name is None:
        return [None]
    values = dict.fromkeys(verdicts[name].values.tolist())
    return list(values) if BY_NAME[name].is_text else sorted(values)


def _where(verdicts: xr.Dataset, name: str | None, value: object) -> np.ndarray:
    if name is None:
        return np.full(verdicts.sizes["cell"], True)
    is_here: np.ndarray = verdicts[name].values == value
    return is_here.copy()


# --- panels ---------------------------------------------------------------------------------------


def best_change(verdicts: xr.Dataset) -> np.ndarray:
    """Return the change of the best strategy except the first against the first in %, `[cell]`; NaN without one."""
    changes = verdicts["change_percent"].values[:, 1:]
    sign = 1.0 if verdicts.attrs["direction"] == LOWER else -1.0
    lowest = np.nanmin(np.where(np.isfinite(changes), sign * changes, np.inf), axis=1)
    return np.where(np.isfinite(lowest), sign * lowest, np.nan)


def _panel(verdicts: xr.Dataset, view: MapView, place: tuple[int, int]) -> Panel:
    """Return one heat map: tile colours show the best other strategy's change, marks the recommended strategy."""
    columns, rows = (_values(verdicts, name) for name in (view.column, view.row))
    across, up = _values(verdicts, view.x), _values(verdicts, view.y)
    here = _where(verdicts, view.row, rows[place[0]])
    part = verdicts.isel(
        cell=np.flatnonzero(here & _where(verdicts, view.column, columns[place[1]]))
    )
    changes, chosen = best_change(part), part["recommended"].values
    shown = np.full((2, len(up), len(across)), np.nan)  # changes, and tiles without a comparison
    labels: dict[str, list[tuple[float, float]]] = {}
    for y, x in np.ndindex(len(up), len(across)):
        at = _where(part, view.x, across[x]) & _where(part, view.y, up[y])
        if at.any():
            known = changes[at][np.isfinite(changes[at])]
            shown[(0, y, x) if len(known) else (1, y, x)] = np.median(known) if len(known) else 1.0
            label = Counter(chosen[at].tolist()).most_common(1)[0][0]
            labels.setdefault(label, []).append((x + 0.5, y + 0.5))
    edges = [[float(at) for at in range(len(values) + 1)] for values in (across, up)]
    colours, names = _colours(verdicts), part["strategy"].values.tolist()
    marks: list[Mark] = [
        Tiles(edges[0], edges[1], plain(shown[0]), colours, steps=STEPS, has_scale=False),
        Tiles(edges[0], edges[1], plain(shown[1]), [NO_COMPARISON], has_scale=False),
    ]
    for label, places in labels.items():
        if label != UNDECIDED:
            at_x, at_y = zip(*places, strict=True)
            marks.append(Series(at_x, at_y, _mark(names, label)))
    return Panel(marks, *_axes(view, place, verdicts))


def _colours(verdicts: xr.Dataset) -> list[str]:
    """Return the colours from the smallest change to the largest; good changes are teal."""
    is_lower = verdicts.attrs["direction"] == LOWER
    return list(COLOURS if is_lower else reversed(COLOURS))


def _step(verdicts: xr.Dataset, change: float) -> int:
    """Return the index of the colour step that a change falls into, the best first."""
    is_lower = verdicts.attrs["direction"] == LOWER
    return int(np.searchsorted(STEPS, change if is_lower else -change))


def _mark(names: Sequence[str], label: str) -> Style:
    if label == NONE:
        return Style("black", "x", size=4.5)
    colour = strategy_colours(names)[label]
    return Style(colour, MARKS[names.index(label) % len(MARKS)], size=6, edge="white")


def _axes(view: MapView, place: tuple[int, int], verdicts: xr.Dataset) -> tuple[Axis, Axis, str]:
    """Return both axes with their values, with names along the outer edges only, and a column's heading."""
    row, column = place
    columns, rows = (_values(verdicts, name) for name in (view.column, view.row))
    across, up = _values(verdicts, view.x), _values(verdicts, view.y)
    is_middle = row == len(rows) - 1 and column == len(columns) // 2
    facet = f"{_facet_words(view.row, rows[row])}\n" if view.row is not None else ""
    x = Axis(
        BY_NAME[view.x].title if is_middle else "", ticks=_ticks(across),
        limits=(0.0, float(len(across))), has_grid=False, is_turned=len(columns) * len(across) > 16,
    )  # fmt: skip
    y = Axis(
        f"{facet}{BY_NAME[view.y].title}" if column == 0 else "", ticks=_ticks(up),
        limits=(0.0, float(len(up))), has_grid=False,
    )  # fmt: skip
    is_headed = row == 0 and view.column is not None
    return x, y, _facet_words(str(view.column), columns[column]) if is_headed else ""


def _ticks(values: Sequence[Any]) -> list[tuple[float, str]]:
    return [(at + 0.5, _short(value)) for at, value in enumerate(values)]


def _facet_words(name: str, value: str | float) -> str:
    if isinstance(value, str):
        return Path(value).stem
    return (
        f"{_short(value)} instances"
        if name == "instances"
        else f"{BY_NAME[name].title}: {_short(value)}"
    )


def _short(value: str | float) -> str:
    """Return a tick label, with thousands written as k."""
    if isinstance(value, str):
        return Path(value).stem
    if value >= 10_000:
        return f"{value / 1000:.0f}k"
    return f"{value:,.0f}" if value >= 1000 else f"{value:g}"


# --- words and scale ------------------------------------------------------------------------------


def _heading(verdicts: xr.Dataset) -> str:
    first, *others = verdicts["strategy"].values.tolist()
    what = " or ".join(others) if len(others) < 4 else f"{len(others)} others"
    return f"Where to use {first}, and where {what}, in {verdicts.sizes['cell']:,} regimes"


def _legend(verdicts: xr.Dataset) -> list[Mark]:
    counts = Counter(verdicts["recommended"].values.tolist())
    total = verdicts.sizes["cell"]

    def named(label: str, words: str, style: Style) -> Series:
        return Series([], [], style, f"{words}: {100 * counts[label] / total:.0f} % of cells")

    names = verdicts["strategy"].values.tolist()
    entries: list[Mark] = [
        *(named(name, f"{name} recommended", _mark(names, name)) for name in names),
        named(NONE, "none can be recommended", _mark(names, NONE)),
        named(UNDECIDED, "no mark, none clearly best", Style()),
    ]
    changes = best_change(verdicts)
    seen = {_step(verdicts, float(change)) for change in changes[np.isfinite(changes)]}
    entries += [
        Bars([], [], Style(COLOURS[step], edge="0.7"), STEP_WORDS[step]) for step in sorted(seen)
    ]
    if not np.isfinite(changes).all():
        entries.append(Bars([], [], Style(NO_COMPARISON), "no comparison: a strategy fails"))
    return entries


def _caption(verdicts: xr.Dataset, view: MapView) -> str:
    shown = set(view.axes)
    kinds = kinds_in(verdicts.coords)
    others = [
        kind.title
        for kind in kinds
        if kind.name not in shown and len(_values(verdicts, kind.name)) > 1
    ]
    first = str(verdicts["strategy"].values[0])
    constraints = [constraint_words(str(text), first) for text in verdicts["constraint"].values]
    who = (
        "the best other strategy"
        if verdicts.sizes["strategy"] > 2
        else str(verdicts["strategy"].values[1])
    )
    text = (
        f"Every cell ran all strategies on the same requests of {_num_seeds(verdicts)} seeds. Colours: "
        f"{metric_words(verdicts.attrs['objective'])} of {who}, against {first}. "
        f"Recommended: the best {metric_words(verdicts.attrs['objective'])}"
    )
    text += f", with {' and '.join(constraints)}" if constraints else ""
    text += (
        f"; it must be best in {100 * verdicts.attrs['confidence']:.0f} % of the paired bootstrap "
        "resamples of the seeds, and every pair of strategies in a cell is corrected for (Holm). A "
        "strategy with a run that fails is not recommended. Where the mark is not of the strategy that the "
        "colour favours, "
        "that one breaks a constraint."
    )
    if others:
        text += (
            f" A tile holds the sampled cells that differ in {joined(others)}: median change, most "
            "frequent recommendation; blank tiles have none."
        )
    return runs_of(verdicts.attrs, verdicts.sizes["seed"]).in_text(text)


def _num_seeds(verdicts: xr.Dataset) -> str:
    counts = verdicts["num_seeds"].values
    least, most = int(counts.min()), int(counts.max())
    return str(most) if least == most else f"{least} to {most}"


def constraint_words(text: str, first: str) -> str:
    """Return a constraint in words; `first` names the strategy that a relative constraint is in % of."""
    sign = "<=" if "<=" in text else ">="
    name, limit = text.split(sign)
    bound = f"{limit[:-1]} % of that of {first}" if limit.endswith("%") else limit
    return f"{metric_words(name)} at {'most' if sign == '<=' else 'least'} {bound}"


def runs_of(attributes: Mapping[str, Any], num_runs: int) -> RunWords:
    """Return the words for the runs in a cell: seeds of a workload, or windows of a trace."""
    documents = yaml.safe_load(attributes.get("workloads", "{}")).values()
    windows = (document for document in documents if "windows" in document)
    return run_words(next(windows, None), num_runs)
