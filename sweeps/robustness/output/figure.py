"""The robustness map as heat maps: colour says how much, the mark which strategy is recommended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.scalars import LOWER
from blis_jax.reports.figures import WIDTH, area_handle, figure, line_handle, save
from blis_jax.reports.style import strategy_colours
from sweeps.robustness.cells import BY_NAME, MapAxis, kinds_in
from sweeps.robustness.output.words import constraint_words, metric_words, runs_of
from sweeps.robustness.verdict import NONE, UNDECIDED

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MARKS = "os^DvP*"
SCALE = "BrBG"  # brown to teal, told apart by colour-blind readers
NO_COMPARISON, ALIKE = "0.55", "0.87"
STEPS = (-60.0, -30.0, -10.0, 10.0, 30.0, 60.0)  # %, between the colours
STEP_WORDS = (
    "over 60 % better", "30 to 60 % better", "10 to 30 % better", "within 10 %",
    "10 to 30 % worse", "30 to 60 % worse", "over 60 % worse",
)  # fmt: skip
LEAST_FILLED = 0.6  # of the tiles; with fewer, heat maps are drawn together
MOST_PANELS = (8, 8)  # columns, rows
TILE_INCHES = 0.22  # height


@dataclass(frozen=True)
class View:
    """The axes of each heat map, and those that tell the heat maps apart, if any do."""

    x: str = "kv_blocks"
    y: str = "rate"
    column: str | None = "shape"
    row: str | None = "instances"

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes that are drawn."""
        return tuple(name for name in (self.x, self.y, self.column, self.row) if name is not None)


def read_view(map_axes: str, map_facets: str, axes: Sequence[MapAxis]) -> View:
    """A view from `X,Y` and `COLUMN,ROW`; refuses what cannot be drawn."""
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
    return View(*names)


def draw(verdicts: xr.Dataset, view: View, path: Path) -> None:
    """Draws a PNG, whole or not at all."""
    view = filled(verdicts, view)
    columns, rows = (_values(verdicts, name) for name in (view.column, view.row))
    height = len(rows) * (TILE_INCHES * len(_values(verdicts, view.y)) + 0.15) + 0.7
    with figure(height, len(rows), len(columns), WIDTH, sharex=True, sharey=True) as (made, panels):
        for place in np.ndindex(len(rows), len(columns)):
            here = _where(verdicts, view.row, rows[place[0]])
            here &= _where(verdicts, view.column, columns[place[1]])
            part = verdicts.isel(cell=np.flatnonzero(here))
            _draw_panel(panels[place], part, view, verdicts)
            _label_panel(panels[place], view, place, verdicts)
        save(made, path, _heading(verdicts), _caption(verdicts, view), _legend(verdicts))


def filled(verdicts: xr.Dataset, view: View) -> View:
    """The view without the facets that would leave many tiles blank."""
    for one in (view, replace(view, row=None), replace(view, row=None, column=None)):
        num_tiles = int(np.prod([len(_values(verdicts, name)) for name in one.axes]))
        seen = set(zip(*(verdicts[name].values.tolist() for name in one.axes), strict=True))
        if len(seen) >= LEAST_FILLED * num_tiles:
            return one
    return replace(view, row=None, column=None)


def _values(verdicts: xr.Dataset, name: str | None) -> list[Any]:
    """The axis's values that occur, numbers in order; one for no axis."""
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
    """Change of the best strategy besides the first against the first in %, `[cell]`; NaN if none."""
    changes = verdicts["change_percent"].values[:, 1:]
    sign = 1.0 if verdicts.attrs["direction"] == LOWER else -1.0
    lowest = np.nanmin(np.where(np.isfinite(changes), sign * changes, np.inf), axis=1)
    return np.where(np.isfinite(lowest), sign * lowest, np.nan)


def _draw_panel(axes: Axes, part: xr.Dataset, view: View, verdicts: xr.Dataset) -> None:
    from matplotlib.patches import Rectangle

    changes = best_change(part)
    names = part["strategy"].values.tolist()
    across, up = _values(verdicts, view.x), _values(verdicts, view.y)
    for x, at_x in enumerate(across):
        for y, at_y in enumerate(up):
            here = _where(part, view.x, at_x) & _where(part, view.y, at_y)
            if not here.any():
                continue
            known = changes[here][np.isfinite(changes[here])]
            colour = _colours()[_step(verdicts, float(np.median(known)))] if len(known) else None
            axes.add_patch(Rectangle((x, y), 1, 1, facecolor=colour or NO_COMPARISON, linewidth=0))
            label = Counter(part["recommended"].values[here].tolist()).most_common(1)[0][0]
            if label == NONE:
                axes.plot(x + 0.5, y + 0.5, "x", color="black", markersize=4.5)
            elif label != UNDECIDED:
                axes.plot(x + 0.5, y + 0.5, **_mark(names, names.index(label)))
    axes.set_xlim(0, len(across))
    axes.set_ylim(0, len(up))
    axes.grid(visible=False)


def _step(verdicts: xr.Dataset, change: float) -> int:
    """Place among the colours, the best first."""
    is_lower = verdicts.attrs["direction"] == LOWER
    return int(np.searchsorted(STEPS, change if is_lower else -change))


def _colours() -> list[Any]:
    from matplotlib import colormaps

    found: list[Any] = [colormaps[SCALE](at) for at in np.linspace(0.92, 0.08, len(STEP_WORDS))]
    found[len(found) // 2] = ALIKE  # unlike a blank tile
    return found


def _mark(names: Sequence[str], arm: int) -> dict[str, Any]:
    return {
        "marker": MARKS[arm % len(MARKS)], "color": strategy_colours(names)[names[arm]],
        "markersize": 6, "markeredgecolor": "white", "markeredgewidth": 0.9, "linestyle": "none",
    }  # fmt: skip


def _label_panel(axes: Axes, view: View, place: tuple[int, ...], verdicts: xr.Dataset) -> None:
    """Values along the outer edges, headings of columns and rows."""
    row, column = place
    columns, rows = (_values(verdicts, name) for name in (view.column, view.row))
    across, up = _values(verdicts, view.x), _values(verdicts, view.y)
    is_narrow = len(columns) * len(across) > 16
    axes.set_xticks(
        np.arange(len(across)) + 0.5,
        [_short(value) for value in across],
        rotation=90 if is_narrow else 0,
    )
    axes.set_yticks(np.arange(len(up)) + 0.5, [_short(value) for value in up])
    axes.tick_params(length=0, pad=2)
    if row == len(rows) - 1 and column == len(columns) // 2:
        axes.set_xlabel(_axis_words(view.x))
    if column == 0:
        facet = f"{_facet_words(view.row, rows[row])}\n" if view.row is not None else ""
        axes.set_ylabel(f"{facet}{_axis_words(view.y)}")
    if row == 0 and view.column is not None:
        axes.set_title(_facet_words(view.column, columns[column]))


def _axis_words(name: str) -> str:
    kind = BY_NAME[name]
    heading = {"arrival_cv": "CV of arrivals", "step_constant": "fixed step cost"}
    unit = {"us": "µs", "requests/s": "requests/s", "blocks per instance": "per instance"}
    words = heading.get(name, kind.heading)
    return f"{words} ({unit[kind.unit]})" if kind.unit in unit else words


def _facet_words(name: str, value: str | float) -> str:
    if isinstance(value, str):
        return Path(value).stem
    return (
        f"{_short(value)} instances"
        if name == "instances"
        else f"{_axis_words(name)}: {_short(value)}"
    )


def _short(value: str | float) -> str:
    """A tick label: thousands as k."""
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


def _legend(verdicts: xr.Dataset) -> list[Any]:
    counts = Counter(verdicts["recommended"].values.tolist())
    total = verdicts.sizes["cell"]

    def share(label: str) -> str:
        return f"{100 * counts[label] / total:.0f} % of cells"

    names = verdicts["strategy"].values.tolist()
    entries = [
        line_handle(f"{name} recommended: {share(name)}", **_mark(names, arm))
        for arm, name in enumerate(names)
    ]
    cross = {"marker": "x", "color": "black", "linestyle": "none"}
    entries += [
        line_handle(f"none can be recommended: {share(NONE)}", **cross),
        line_handle(f"no mark, none clearly best: {share(UNDECIDED)}", linestyle="none"),
    ]
    changes = best_change(verdicts)
    seen = {_step(verdicts, float(one)) for one in changes[np.isfinite(changes)]}
    entries += [
        area_handle(STEP_WORDS[step], facecolor=_colours()[step], edgecolor="0.7", linewidth=0.5)
        for step in sorted(seen)
    ]
    if not np.isfinite(changes).all():
        entries.append(area_handle("no comparison: a strategy fails", color=NO_COMPARISON))
    return entries


def _caption(verdicts: xr.Dataset, view: View) -> str:
    shown = set(view.axes)
    names = [kind.name for kind in kinds_in(verdicts.coords)]
    others = [name for name in names if name not in shown and len(_values(verdicts, name)) > 1]
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
            f" A tile holds the sampled cells that differ in {', '.join(others)}: median change, most "
            "frequent recommendation; blank tiles have none."
        )
    return runs_of(verdicts.attrs, verdicts.sizes["seed"]).in_text(text)


def _num_seeds(verdicts: xr.Dataset) -> str:
    counts = verdicts["num_seeds"].values
    least, most = int(counts.min()), int(counts.max())
    return str(most) if least == most else f"{least} to {most}"
