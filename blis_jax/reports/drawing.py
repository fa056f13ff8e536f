"""Draw pictures: as a PNG file, or as SVG for a page."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from blis_jax.files.atomic_write import replacing
from blis_jax.reports.pictures import (
    Axis,
    Bars,
    Guide,
    Mark,
    Number,
    Panel,
    Picture,
    Series,
    Style,
    Tiles,
    Words,
)
from blis_jax.reports.style import (
    DPI,
    LINE_INCHES,
    RULES,
    area_handle,
    figure,
    line_handle,
    plain_log,
    put_words,
    write_png,
)
from blis_jax.reports.tooltips import PANEL, Part, mark_id, stride, with_tooltips

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_RATIO, GREATEST_RATIO = 1 / 256, 256.0  # ends of an axis of changes
LEAST_GAP = 2e-4  # from 100 %, which an axis of shares does not have
SHARES = (0.0, 50.0, 90.0, 95.0, 99.0, 99.9)
MOST_OCTAVES = 4  # with a tick at each
LEAST_OCTAVES = 2  # below them there are steps of round numbers, no halves and doubles


def save(picture: Picture, path: Path) -> None:
    """Write a PNG, whole or not at all; it carries its data as JSON, so that a later run can be compared with it."""
    with drawn(picture) as made, replacing(path) as written:
        write_png(made, written, picture.to_json())


_NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))


def svg(picture: Picture) -> str:
    """Return the picture as an SVG element for a page; equal pictures give equal text."""
    text = io.StringIO()
    salt = f"{picture.name} {picture.choices}"  # so that no two pictures of a page share a name
    with drawn(picture) as made, rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        made.savefig(text, format="svg", metadata=_NO_METADATA)
    whole = re.sub(r"base64,[^\"]*", lambda image: "".join(image[0].split()), text.getvalue())
    return with_tooltips(re.sub(r"\s*\n\s*", " ", whole[whole.index("<svg") :]), picture)


class NotebookFigure(Figure):
    """A figure that a notebook shows in the common style."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        with rc_context(RULES):
            self.savefig(file, dpi=DPI, format="png")
        return file.getvalue()


def shown(picture: Picture) -> NotebookFigure:
    """Return the picture as a figure for a notebook."""
    with drawn(picture) as made:
        made.__class__ = NotebookFigure
        shown_: NotebookFigure = made
    return shown_


@contextmanager
def drawn(picture: Picture) -> Iterator[Any]:
    """Yield the picture as matplotlib's Figure."""
    rows, columns = len(picture.panels), max(map(len, picture.panels))
    sharing: dict[str, Any] = {"sharex": picture.shares_x, "sharey": picture.shares_y}
    grid: dict[str, Any] = {"height_ratios": picture.heights}
    size = sum(picture.heights), rows, columns, picture.width
    with figure(*size, gridspec_kw=grid, **sharing) as (made, panels):
        pairs = [
            (axes, of_row[column] if column < len(of_row) else None, (at, column))
            for at, (row, of_row) in enumerate(zip(panels, picture.panels, strict=True))
            for column, axes in enumerate(row)
        ]
        for axes, panel, place in pairs:
            if panel is None:
                axes.set_visible(False)
            else:
                axes.set_gid(" ".join(map(str, (PANEL, *place))))
                _draw_panel(axes, panel, place)
        for axes, panel, _ in pairs:  # only now every panel of a shared axis has its marks
            if panel is not None:
                _set_axis(axes, panel.x, "x")
                _set_axis(axes, panel.y, "y")
        handles = [_handle(mark) for mark in picture.explained]
        put_words(made, picture.title, picture.caption, handles)
        yield made


def _draw_panel(axes: Axes, panel: Panel, place: tuple[int, int]) -> None:
    _set_scale(axes, panel.x, "x")
    _set_scale(axes, panel.y, "y")
    for at, mark in enumerate(panel.marks):
        match mark:
            case Series():
                shapes = _draw_series(axes, mark, panel)
            case Bars():
                start = _at(panel.x, mark.start) if mark.start else None
                bars = axes.barh(
                    _at(panel.y, mark.y), _at(panel.x, mark.length), mark.height, left=start,
                    color=mark.style.colour, alpha=mark.style.opacity, linewidth=0,
                )  # fmt: skip
                shapes = [("each", bar) for bar in bars]
            case Tiles():
                shapes = [("each", _draw_tiles(axes, mark))]
            case Guide():
                shapes = [("whole", _draw_guide(axes, mark, panel))]
            case Words():
                shapes = []
                _draw_words(axes, mark, panel)
        for part, shape in shapes:
            shape.set_gid(mark_id(*place, at, part))
    height = 72 * 1.05 * LINE_INCHES
    axes.set_title(panel.title, color=panel.colour, pad=6 + height * len(panel.notes))
    for line, (text, colour) in enumerate(reversed(panel.notes)):
        axes.annotate(
            text, (0, 1), (0, 4 + height * line), xycoords="axes fraction",
            textcoords="offset points", color=colour,
        )  # fmt: skip


# --- marks ----------------------------------------------------------------------------------------


def _draw_series(axes: Axes, series: Series, panel: Panel) -> list[tuple[Part, Any]]:
    style = series.style
    x, y = _at(panel.x, series.x), _at(panel.y, series.y)
    shapes: list[tuple[Part, Any]] = []
    if series.has_band and len(series.x_low):
        low, high = _at(panel.x, series.x_low), _at(panel.x, series.x_high)
        band = axes.fill_betweenx(y, low, high, color=style.colour, alpha=0.2, linewidth=0)
        shapes.append(("whole", band))
    elif series.has_band:
        low, high = _at(panel.y, series.y_low), _at(panel.y, series.y_high)
        band = axes.fill_between(x, low, high, color=style.colour, alpha=0.2, linewidth=0)
        shapes.append(("whole", band))
    else:
        bars: dict[str, Any] = {
            "colors": style.colour,
            "linewidth": style.width,
            "alpha": style.opacity,
        }
        if len(series.x_low):
            low, high = _ends(panel.x, series.x_low, series.x_high)
            shapes.append(("each", axes.hlines(y, low, high, **bars)))
        if len(series.y_low):
            low, high = _ends(panel.y, series.y_low, series.y_high)
            shapes.append(("each", axes.vlines(x, low, high, **bars)))
    (points,) = axes.plot(
        x, y, **_line(style), drawstyle="steps-post" if series.is_step else "default",
        markerfacecolor="white" if style.is_hollow else style.colour,
    )  # fmt: skip
    if not style.line or style.marker:
        return [*shapes, ("points", points)]
    # a page tells the values along a line
    (unseen,) = axes.plot(x, y, "o", markersize=8, alpha=0, markevery=stride(series))
    return [*shapes, ("whole", points), ("points", unseen)]


def _line(style: Style) -> dict[str, Any]:
    edge = {"markeredgecolor": style.edge, "markeredgewidth": 0.9} if style.edge else {}
    return {
        "color": style.colour, "marker": style.marker or "none", "linestyle": style.line or "none",
        "linewidth": style.width, "markersize": style.size,
        "alpha": style.opacity if style.line else 1.0, **edge,
    }  # fmt: skip


def _draw_tiles(axes: Axes, tiles: Tiles) -> Any:
    values = np.array(
        [[np.nan if value is None else value for value in row] for row in tiles.values], np.float64
    )
    norm, (least, most) = None, tiles.bounds or (None, None)
    if isinstance(tiles.colours, str):
        colours = colormaps[tiles.colours]
    elif tiles.steps or len(tiles.colours) == 1:
        colours = ListedColormap(list(tiles.colours))
    else:
        colours = LinearSegmentedColormap.from_list("tiles", list(tiles.colours))
    if tiles.steps:
        norm, least, most = BoundaryNorm([-1e9, *tiles.steps, 1e9], colours.N), None, None
    edges = [np.array(edge, float) for edge in (tiles.x, tiles.y)]
    image = axes.pcolormesh(
        *edges, np.ma.masked_invalid(values), cmap=colours, norm=norm, vmin=least, vmax=most,
        rasterized=values.size > 400,
    )  # fmt: skip
    axes.grid(visible=False)
    if tiles.has_scale:
        bar = axes.figure.colorbar(image, ax=axes, pad=0.02)
        bar.set_label(tiles.unit)
        bar.ax.tick_params(labelsize=8)
    return image


def _draw_guide(axes: Axes, guide: Guide, panel: Panel) -> Any:
    look: dict[str, Any] = {**_line(guide.style), "zorder": 0.9}
    if guide.across == "diagonal":
        return axes.plot([0, guide.at], [0, guide.at], **look)[0]
    if guide.across == "x":
        return axes.axvline(_at(panel.x, [guide.at])[0], **look)
    return axes.axhline(_at(panel.y, [guide.at])[0], **look)


def _draw_words(axes: Axes, words: Words, panel: Panel) -> None:
    x, y = _at(panel.x, [words.x])[0], _at(panel.y, [words.y])[0]
    look: dict[str, Any] = {"fontsize": 8.5, "color": "0.3"}
    if words.is_span:
        axes.axvspan(0, x, color="0.94", zorder=0)
        axes.text(0.6, 0.02, words.text, transform=axes.get_xaxis_transform(), **look)
    else:
        axes.text(x, y, f" {words.text}", va="center", **look)


def _handle(mark: Mark) -> Any:
    if isinstance(mark, Series | Guide):
        return line_handle(mark.label, **_line(mark.style))
    assert isinstance(mark, Bars)
    edge = {"edgecolor": mark.style.edge, "linewidth": 0.5} if mark.style.edge else {}
    return area_handle(mark.label, facecolor=mark.style.colour, **edge)


# --- axes -----------------------------------------------------------------------------------------


def _at(axis: Axis, values: Sequence[Number]) -> np.ndarray:
    """Return values as coordinates on matplotlib's axis, NaN for missing ones."""
    heights = np.array([np.nan if value is None else value for value in values], np.float64)
    if axis.scale == "percent":
        return np.clip(1 + heights / 100, LEAST_RATIO, GREATEST_RATIO)
    return np.maximum(1 - heights / 100, LEAST_GAP) if axis.scale == "share" else heights


def _ends(
    axis: Axis, lows: Sequence[Number], highs: Sequence[Number]
) -> tuple[np.ndarray, np.ndarray]:
    """Return both ends of intervals; an interval without an upper end reaches to the end of the axis."""
    low, high = _at(axis, lows), _at(axis, highs)
    if axis.scale == "percent":
        high = np.where(np.isnan(high) & ~np.isnan(low), GREATEST_RATIO, high)
    return low, high


def _set_scale(axes: Axes, axis: Axis, name: Literal["x", "y"]) -> None:
    scale = getattr(axes, f"set_{name}scale")
    if axis.scale in ("percent", "log2"):
        scale("log", base=2)
    elif axis.scale in ("share", "log"):
        scale("log")


def _set_axis(axes: Axes, axis: Axis, name: Literal["x", "y"]) -> None:
    limit, ruler = getattr(axes, f"set_{name}lim"), getattr(axes, f"{name}axis")
    if axis.scale == "share":
        limit(1.6, LEAST_GAP * 0.5)  # a mark at either end stands whole
    elif axis.scale == "percent" and axis.limits != (None, None):
        limit(*(None if end is None else 1 + end / 100 for end in axis.limits))  # wider than marks
    elif axis.limits != (None, None):
        limit(*(None if end is None else _at(axis, [end])[0] for end in axis.limits))
    ticks = axis.ticks
    if ticks is None and axis.scale == "percent":
        ticks = _changes(*getattr(axes, f"get_{name}lim")())
    elif ticks is None and axis.scale == "share":
        ticks = [(share, f"{share:g} %") for share in SHARES]
    if ticks is not None:
        places = _at(axis, [at for at, _ in ticks])
        put = getattr(axes, f"set_{name}ticks")
        put(places, [text for _, text in ticks], rotation=90 if axis.is_turned else 0)
        put([], minor=True)
    elif axis.scale == "log":
        plain_log(axes, name)
    elif axis.most_ticks is not None:
        ruler.set_major_locator(MaxNLocator(axis.most_ticks, integer=axis.is_whole))
        ruler.set_major_formatter(_short)
    for label, colour in zip(ruler.get_ticklabels(), axis.colours, strict=False):
        label.set_color(colour)
    if not axis.has_grid:
        axes.grid(axis=name, visible=False)
        axes.tick_params(axis=name, length=0)
    getattr(axes, f"set_{name}label")(axis.label)


def _changes(low: float, high: float) -> list[tuple[float, str]]:
    """Return ticks for an axis of changes: `−50 %` and `+100 %`, and round numbers in a smaller range."""
    if high / low < 2**LEAST_OCTAVES:
        decade = 10 ** math.floor(math.log10(100 * max(1 - low, high - 1)))
        rounds = [part * decade for part in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)]
        fitting = [change for change in rounds if change <= 100 * min(1 - low, high - 1)]
        changes = [-fitting[-1], 0.0, fitting[-1]] if fitting else [0.0, *rounds[-3:]]
    else:
        step = 1 if high / low <= 2**MOST_OCTAVES else 2 if high / low <= 4**MOST_OCTAVES else 4
        changes = [100 * (2.0**power - 1) for power in range(-8, 9, step)]
    shown = [change for change in changes if low <= 1 + change / 100 <= high]
    texts = [f"{at:+,.0f} %" if at >= 1000 else f"{at:+.3g} %" for at in shown]
    return [
        (at, text.replace("-", "−") if at else "0") for at, text in zip(shown, texts, strict=True)
    ]


def _short(value: float, _: int) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:,g}".replace("-", "−")
