"""The robustness map as heat maps: colour says how much, the mark which strategy is recommended."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from blis_jax.atomic_write import replacing
from blis_jax.errors import ConfigError, closest
from blis_jax.scalar_metrics import LOWER
from blis_jax.sweep_figure import COLOURS
from sweeps.robustness_cells import BY_NAME, NAMES, Axis
from sweeps.robustness_verdict import NONE, UNDECIDED
from sweeps.robustness_words import constraint_words, metric_words

MARKS = "os^DvP*"
SCALE = "BrBG"  # brown to teal, told apart by colour-blind readers
NO_COMPARISON = "0.72"
LARGEST_CHANGE = 100.0  # %, beyond which the colour stays
MOST_PANELS = (8, 8)  # columns, rows
TILE_INCHES = 0.27
MARGIN_INCHES = (0.95, 0.45)  # left and right of the panels
GAP_INCHES = (0.14, 0.16)
LINE_INCHES = 0.155
LETTERS_PER_INCH = 16.5
WIDEST_TILE = 2.2  # times its height


@dataclass(frozen=True)
class View:
    """The axes of each heat map, and those that tell the heat maps apart."""

    x: str = "kv_blocks"
    y: str = "rate"
    column: str = "shape"
    row: str = "instances"


def read_view(map_axes: str, map_facets: str, axes: Sequence[Axis]) -> View:
    """A view from `X,Y` and `COLUMN,ROW`; refuses what cannot be drawn."""
    names = []
    for option, text in (("--map-axes", map_axes), ("--map-facets", map_facets)):
        parts = [part.strip().replace("-", "_") for part in text.split(",")]
        for part in parts:
            if part not in NAMES:
                raise ConfigError(
                    f"{option}: {part!r} is not an axis; use two of {', '.join(NAMES)}"
                    f"{closest(part, NAMES)}"
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
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    values = {name: _values(verdicts, name) for name in vars(view).values()}
    columns, rows = values[view.column], values[view.row]
    tile = _tile_inches(len(columns) * len(values[view.x]))
    panel = (tile * len(values[view.x]), TILE_INCHES * len(values[view.y]))
    across = len(columns) * panel[0] + (len(columns) - 1) * GAP_INCHES[0]
    width = max(across + sum(MARGIN_INCHES), 7.4)
    caption = textwrap.wrap(_caption(verdicts, view), int(LETTERS_PER_INCH * width))
    heading = textwrap.wrap(_heading(verdicts), int(0.72 * LETTERS_PER_INCH * width))
    above = LINE_INCHES * (1.35 * len(heading) + 4.3)
    below = LINE_INCHES * (len(caption) + 8.4)
    inside = len(rows) * panel[1] + (len(rows) - 1) * GAP_INCHES[1]
    height = above + inside + below
    with rc_context({"font.size": 8, "hatch.linewidth": 0.5}):
        figure = Figure(figsize=(width, height))
        for place in np.ndindex(len(rows), len(columns)):
            left = MARGIN_INCHES[0] + place[1] * (panel[0] + GAP_INCHES[0])
            bottom = below + (len(rows) - 1 - place[0]) * (panel[1] + GAP_INCHES[1])
            box = (left / width, bottom / height, panel[0] / width, panel[1] / height)
            axes = figure.add_axes(box)
            here = _where(verdicts, view.row, rows[place[0]])
            here &= _where(verdicts, view.column, columns[place[1]])
            _draw_panel(axes, verdicts.isel(cell=np.flatnonzero(here)), view, values)
            _label_panel(axes, view, place, values)
        words = "\n".join(heading)
        figure.text(0.012, 1 - 0.07 / height, words, fontsize=10.5, va="top", linespacing=1.2)
        _draw_legend(figure, verdicts, 1 - LINE_INCHES * (1.35 * len(heading) + 0.7) / height)
        _draw_scale(figure, verdicts, width, height, LINE_INCHES * (len(caption) + 2.3))
        words = "\n".join(caption)
        figure.text(0.012, 0.06 / height, words, fontsize=7.5, color="0.3", va="bottom")
        with replacing(path) as written:
            figure.savefig(written, dpi=140, format="png")


def _tile_inches(num_across: int) -> float:
    """Width of a tile: as high as wide where there are many."""
    return float(np.clip(9.0 / num_across, TILE_INCHES, WIDEST_TILE * TILE_INCHES))


def _values(verdicts: xr.Dataset, name: str) -> list[Any]:
    """The axis's values that occur, numbers in order."""
    values = dict.fromkeys(verdicts[name].values.tolist())
    return list(values) if BY_NAME[name].is_text else sorted(values)


def _where(verdicts: xr.Dataset, name: str, value: Any) -> np.ndarray:
    is_here: np.ndarray = verdicts[name].values == value
    return is_here.copy()


# --- panels ---------------------------------------------------------------------------------------


def best_change(verdicts: xr.Dataset) -> np.ndarray:
    """Change of the best strategy besides the first against the first in %, `[cell]`; NaN if none."""
    changes = verdicts["change_percent"].values[:, 1:]
    sign = 1.0 if verdicts.attrs["direction"] == LOWER else -1.0
    lowest = np.nanmin(np.where(np.isfinite(changes), sign * changes, np.inf), axis=1)
    return np.where(np.isfinite(lowest), sign * lowest, np.nan)


def _draw_panel(axes: Any, part: xr.Dataset, view: View, values: dict[str, list[Any]]) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    changes = best_change(part)
    sign = -1.0 if part.attrs["direction"] == LOWER else 1.0
    names = part["strategy"].values.tolist()
    for x, at_x in enumerate(values[view.x]):
        for y, at_y in enumerate(values[view.y]):
            here = _where(part, view.x, at_x) & _where(part, view.y, at_y)
            if not here.any():
                continue
            known = changes[here][np.isfinite(changes[here])]
            colour: Any = NO_COMPARISON
            if len(known):
                share = 0.5 + sign * float(np.median(known)) / (2 * LARGEST_CHANGE)
                colour = colormaps[SCALE](float(np.clip(share, 0, 1)))
            label = Counter(part["recommended"].values[here].tolist()).most_common(1)[0][0]
            hatch = "/////" if label == UNDECIDED else None
            axes.add_patch(
                Rectangle(
                    (x, y), 1, 1, facecolor=colour, edgecolor="0.35", hatch=hatch, linewidth=0
                )
            )
            if label == NONE:
                axes.plot(x + 0.5, y + 0.5, "x", color="black", markersize=5)
            elif label != UNDECIDED:
                _mark(axes, x + 0.5, y + 0.5, names.index(label))
    axes.set_xlim(0, len(values[view.x]))
    axes.set_ylim(0, len(values[view.y]))
    for edge in axes.spines.values():
        edge.set_color("0.6")


def _mark(axes: Any, x: float, y: float, arm: int, **further: Any) -> Any:
    (mark,) = axes.plot(
        [x], [y], MARKS[arm % len(MARKS)], color=COLOURS[arm % len(COLOURS)], markersize=5.5,
        markeredgecolor="white", markeredgewidth=0.8, linestyle="none", **further,
    )  # fmt: skip
    return mark


def _label_panel(
    axes: Any, view: View, place: tuple[int, ...], values: dict[str, list[Any]]
) -> None:
    """Values along the outer edges, headings of columns and rows."""
    row, column = place
    is_last, is_first = row == len(values[view.row]) - 1, column == 0
    axes.set_xticks(np.arange(len(values[view.x])) + 0.5)
    axes.set_yticks(np.arange(len(values[view.y])) + 0.5)
    axes.set_xticklabels(
        [_short(value) for value in values[view.x]] if is_last else [], rotation=90, fontsize=7
    )
    axes.set_yticklabels(
        [_short(value) for value in values[view.y]] if is_first else [], fontsize=7
    )
    axes.tick_params(length=0, pad=2)
    if is_last:
        axes.set_xlabel(_axis_words(view.x), fontsize=7.5)
    if is_first:
        facet = _facet_words(view.row, values[view.row][row])
        axes.set_ylabel(f"{facet}\n{_axis_words(view.y)}", fontsize=7.5)
    if row == 0:
        words = _facet_words(view.column, values[view.column][column])
        axes.set_title(words, fontsize=8.5, pad=4)


def _axis_words(name: str) -> str:
    kind = BY_NAME[name]
    heading = {"arrival_cv": "CV of arrivals", "step_constant": "fixed step cost"}
    unit = {"us": "µs", "requests/s": "requests/s", "blocks per instance": "per instance"}
    words = heading.get(name, kind.heading)
    return f"{words} ({unit[kind.unit]})" if kind.unit in unit else words


def _facet_words(name: str, value: Any) -> str:
    if isinstance(value, str):
        return Path(value).stem
    return (
        f"{_short(value)} instances"
        if name == "instances"
        else f"{_axis_words(name)}: {_short(value)}"
    )


def _short(value: Any) -> str:
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
    return f"Where to use {first}, where {what}: {verdicts.sizes['cell']:,} regimes"


def _draw_legend(figure: Any, verdicts: xr.Dataset, top: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    counts = Counter(verdicts["recommended"].values.tolist())
    total = verdicts.sizes["cell"]
    entries: list[Any] = []
    for arm, name in enumerate(verdicts["strategy"].values.tolist()):
        entries.append(
            Line2D(
                [], [], marker=MARKS[arm % len(MARKS)], color=COLOURS[arm % len(COLOURS)],
                linestyle="none", markersize=7, markeredgecolor="white",
                label=f"{name} recommended: {100 * counts[name] / total:.0f} % of cells",
            )
        )  # fmt: skip
    entries += [
        Patch(facecolor="white", edgecolor="0.35", hatch="/////",
              label=f"undecided: {100 * counts[UNDECIDED] / total:.0f} %"),
        Line2D([], [], marker="x", color="black", linestyle="none",
               label=f"none can be recommended: {100 * counts[NONE] / total:.0f} %"),
        Patch(facecolor=NO_COMPARISON, label="no comparison: a strategy fails"),
    ]  # fmt: skip
    figure.legend(
        handles=entries, loc="upper left", bbox_to_anchor=(0.004, top), ncols=3, frameon=False,
        fontsize=7.5, handletextpad=0.5, columnspacing=1.4, borderaxespad=0.0,
    )  # fmt: skip


def _draw_scale(
    figure: Any, verdicts: xr.Dataset, width: float, height: float, bottom: float
) -> None:
    """The colour scale, better on the right whichever way the metric goes."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    is_lower = verdicts.attrs["direction"] == LOWER
    norm = Normalize(-LARGEST_CHANGE, LARGEST_CHANGE)
    box = (MARGIN_INCHES[0] / width, bottom / height, 3.4 / width, 0.11 / height)
    axes = figure.add_axes(box)
    bar = figure.colorbar(ScalarMappable(norm, SCALE), cax=axes, orientation="horizontal")
    ticks = np.array([-100, -50, 0, 50, 100])
    bar.set_ticks(ticks)
    shown = -ticks if is_lower else ticks
    words = [f"{value:+d}".replace("-", "−") if value else "0" for value in shown.tolist()]
    words[0] += " and beyond"
    bar.set_ticklabels(words)
    axes.tick_params(labelsize=7)
    first, *others = verdicts["strategy"].values.tolist()
    who = others[0] if len(others) == 1 else "the best other strategy"
    axes.set_title(
        f"change of {metric_words(verdicts.attrs['objective'])}, {who} against {first} (%); "
        "teal is better",
        fontsize=7.5, loc="left", pad=3,
    )  # fmt: skip


def _caption(verdicts: xr.Dataset, view: View) -> str:
    shown = set(vars(view).values())
    others = [name for name in NAMES if name not in shown and len(_values(verdicts, name)) > 1]
    first = str(verdicts["strategy"].values[0])
    constraints = [constraint_words(str(text), first) for text in verdicts["constraint"].values]
    text = (
        f"Every cell ran all strategies on the same requests of {verdicts.sizes['seed']} seeds. "
        f"Recommended: the best {metric_words(verdicts.attrs['objective'])}"
    )
    text += f", with {' and '.join(constraints)}" if constraints else ""
    text += (
        f"; it must be best in {100 * verdicts.attrs['confidence']:.0f} % of the paired bootstrap "
        "resamples of the seeds, with a paired 95 % interval without 0. A strategy with a run that "
        "fails is not recommended. Where the mark is not of the strategy that the colour favours, "
        "that one breaks a constraint."
    )
    if others:
        text += (
            f" A tile holds the sampled cells that differ in {', '.join(others)}: median change, most "
            "frequent recommendation; blank tiles have none."
        )
    return text
