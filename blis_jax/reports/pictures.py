"""Pictures as data: panels of marks on axes, from which the PNG, the page and the JSON are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from blis_jax.files.atomic_write import plain
from blis_jax.reports.style import BLACK, GUIDE_COLOUR, WIDTH

Number = float | None
Numbers = Sequence[Number]
# percent: changes in %, at even steps of their ratio; share: shares in %, stretched towards 100
Scale = Literal["linear", "log", "log2", "percent", "share"]


class Style(NamedTuple):
    """The style of a series; without `marker` or `line` neither is drawn."""

    colour: str = BLACK
    marker: str = ""
    line: str = ""
    width: float = 1.7
    size: float = 5.0
    is_hollow: bool = False
    opacity: float = 1.0
    edge: str = ""  # of the marker


ACROSS = Style(GUIDE_COLOUR, line="-", width=1.1)


@dataclass(frozen=True)
class Series:
    """Hold points `[point]`, joined if the style has a line, with their intervals as bars or as a band."""

    x: Numbers
    y: Numbers
    style: Style
    label: str = ""
    x_low: Numbers = ()
    x_high: Numbers = ()
    y_low: Numbers = ()
    y_high: Numbers = ()
    has_band: bool = False
    is_step: bool = False
    told: str = ""  # by a page, where the legend has no label of it


@dataclass(frozen=True)
class Bars:
    """Hold horizontal bars `[bar]`, each from its `start`."""

    y: Numbers
    length: Numbers
    style: Style
    label: str = ""
    start: Numbers = ()
    height: float = 0.62


@dataclass(frozen=True)
class Tiles:
    """Hold a heat map `[row, column]` with the tiles' edges `x` and `y`; None leaves a tile blank."""

    x: Numbers
    y: Numbers
    values: Sequence[Numbers]
    colours: str | Sequence[str]  # a colour map's name, or colours from the least to the greatest
    bounds: tuple[float, float] | None = None
    steps: Sequence[float] = ()  # between the colours, where they do not run into each other
    unit: str = ""
    has_scale: bool = True


@dataclass(frozen=True)
class Guide:
    """Hold a straight line across a panel, or along its diagonal."""

    at: float
    across: Literal["x", "y", "diagonal"] = "x"
    style: Style = ACROSS
    label: str = ""


@dataclass(frozen=True)
class Words:
    """Hold a text beside a point, or, if `is_span`, on a shaded area that reaches to x."""

    x: float
    y: float
    text: str
    is_span: bool = False


Mark = Series | Bars | Tiles | Guide | Words


@dataclass(frozen=True)
class Axis:
    """Describe an axis; `limits` from high to low reverse it."""

    label: str = ""
    scale: Scale = "linear"
    ticks: Sequence[tuple[float, str]] | None = None
    limits: tuple[Number, Number] = (None, None)
    colours: Sequence[str] = ()  # of the ticks' texts
    most_ticks: int | None = None
    is_whole: bool = False  # ticks at whole numbers
    is_turned: bool = False  # texts stand upright
    has_grid: bool = True
    # its values are seeds, or windows: a page follows one through all pictures
    is_run: bool = False


@dataclass(frozen=True)
class Panel:
    """Hold marks on two axes; `notes` are texts above the panel, each in its colour."""

    marks: Sequence[Mark]
    x: Axis = Axis()
    y: Axis = Axis()
    title: str = ""
    colour: str = BLACK  # of the title
    notes: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Picture:
    """Hold panels `[row][column]` below a title and above a caption."""

    title: str
    caption: str
    panels: Sequence[Sequence[Panel | None]]
    heights: Sequence[float]  # inches of each row
    width: float = WIDTH
    shares_x: Literal["none", "all", "row", "col"] = "none"
    shares_y: Literal["none", "all", "row", "col"] = "none"
    key: Sequence[Mark] = ()  # whose labels are explained; all that have one if empty
    name: str = ""  # by which pages and JSON know it
    heading: str = ""  # of a part of a page, above the first picture that has it
    choices: Sequence[tuple[str, str]] = ()  # what a reader chose to see it: a metric, a place

    @property
    def marks(self) -> list[Mark]:
        """Return all marks, row by row."""
        return [
            mark
            for row in self.panels
            for panel in row
            if panel is not None
            for mark in panel.marks
        ]

    @property
    def explained(self) -> list[Mark]:
        """Return the marks that the legend shows, one for each label."""
        by_label: dict[str, Mark] = {}
        for mark in self.key or self.marks:
            by_label.setdefault(_label(mark), mark)
        return [mark for label, mark in by_label.items() if label]

    def to_json(self) -> dict[str, Any]:
        """Return texts and numbers as plain data, without styles."""
        return {
            "title": self.title,
            "caption": self.caption,
            "choices": dict(self.choices),
            "panels": [_panel_json(panel) for row in self.panels for panel in row if panel],
        }


def _label(mark: Mark) -> str:
    return getattr(mark, "label", "")


def _panel_json(panel: Panel) -> dict[str, Any]:
    return {
        "title": panel.title,
        "x": panel.x.label,
        "y": panel.y.label,
        "marks": [
            {"kind": type(mark).__name__.lower(), "label": _label(mark), **_numbers_json(mark)}
            for mark in panel.marks
            if not isinstance(mark, Words)
        ],
    }


DATA = ("x", "y", "x_low", "x_high", "y_low", "y_high", "length", "start", "values", "at")


def _numbers_json(mark: Mark) -> dict[str, Any]:
    known = {field.name for field in fields(mark)}
    data = {name: getattr(mark, name) for name in DATA if name in known}
    return {
        name: plain(value) for name, value in data.items() if isinstance(value, float) or len(value)
    }
