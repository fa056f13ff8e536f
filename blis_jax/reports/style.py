"""Colours of strategies, SLO classes and parts of TTFT: the same in every figure and report.

Strategies have Okabe and Ito's colours, classes the colours of Paul Tol's muted scheme, parts pale fills: readers with
any kind of colour vision can distinguish them, and no colour means two things.
"""

from __future__ import annotations

import io
import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import lazy
from blis_jax.files.atomic_write import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


GREY, BLUE, RED, GREEN = "#4d4d4d", "#0072b2", "#d55e00", "#009e73"
PINK, ORANGE, SKY, BLACK = "#cc79a7", "#e69f00", "#56b4e9", "#000000"

# By place among the strategies that are compared; the first is the reference.
STRATEGY_COLOURS = (GREY, BLUE, RED, GREEN, PINK, ORANGE, SKY)
# The ledger's strategies keep their colour wherever they are. A name begins with one of these, or is
# what the strategy is called in BLIS.
OF_STRATEGIES: Mapping[str, str] = {
    "baseline": GREY,
    "iter00": GREY,
    "iter01": GREEN,
    "iter03": PINK,
    "iter05": BLUE,
    "iter08": RED,
    "it08": RED,
    "iter13": ORANGE,
    "slo-gated-priority-cascade": GREEN,
    "slo-gated-admission": PINK,
    "priority-no-chunk": BLUE,
    "full-combined": RED,
    "class-lead": ORANGE,
}

ALL_REQUESTS = "all"
CLASS_COLOURS: Mapping[str, str] = {
    ALL_REQUESTS: BLACK,
    "critical": "#882255",
    "standard": "#999933",
    "sheddable": "#7788cc",
    "batch": "#44aa99",
    "background": "#ddcc77",
    "default": "#777777",
}
# Beside the colours, for eyes and printers that lack them.
CLASS_LINES: Mapping[str, str] = {"standard": "--", "sheddable": ":", "batch": "-."}
CLASS_MARKS: Mapping[str, str] = {
    "standard": "s",
    "sheddable": "^",
    "batch": "D",
    "background": "v",
}

# The groups of metrics/summaries.py, and what readers call them.
PARTS: Mapping[str, tuple[str, str]] = {
    "waiting": ("#c4c4c4", "waiting in the queue"),
    "preempted service": ("#8c6bb1", "work lost to preemption"),
    "compute": ("#74a9cf", "prefill compute"),
    "chunk overhead": ("#f2c14e", "overhead of chunks"),
    "fixed": ("#5a5a5a", "fixed delays"),
}


def strategy_colours(
    names: Iterable[str], kinds: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Return a colour for each strategy: its own if the ledger has it, else the next free one.

    `kinds` maps a label to the strategy that it stands for. With more strategies than colours, colours repeat.
    """
    wanted = list(dict.fromkeys(names))
    chosen: dict[str, str] = {}
    for name in wanted:
        known = _known(name) or _known((kinds or {}).get(name, ""))
        if known and known not in chosen.values():
            chosen[name] = known
    free = [colour for colour in STRATEGY_COLOURS if colour not in chosen.values()]
    others = [name for name in wanted if name not in chosen]
    if GREY in free and wanted[:1] != others[:1]:
        free.append(free.pop(free.index(GREY)))  # grey is the reference's
    palette = free or list(STRATEGY_COLOURS)
    for place, name in enumerate(others):
        is_free = place < len(free)
        chosen[name] = free[place] if is_free else STRATEGY_COLOURS[place % len(palette)]
    return {name: chosen[name] for name in wanted}


def _known(name: str) -> str:
    """Return the colour of a ledger strategy; empty for any other name."""
    return next((colour for start, colour in OF_STRATEGIES.items() if name.startswith(start)), "")


# --- how every picture looks: one width -----------------------------------------------------------

# Pictures are shown about 690 pixels wide; at `WIDTH` inches the smallest letters are 10 pixels high there.


WIDTH = 7.4  # inches
DPI = 160
TITLE_SIZE, TEXT_SIZE, CAPTION_SIZE = 10.8, 9.0, 8.2
LINE_INCHES = 0.152  # of a caption's line
TITLE_INCHES = 0.19  # of a title's line
LEGEND_INCHES = 0.165  # of a legend's line
LETTERS_PER_INCH = 16.7  # of a caption
TITLE_LETTERS_PER_INCH = 10.9
LEGEND_LETTER_INCHES, LEGEND_HANDLE_INCHES = 0.068, 0.52
# largest value by smallest beyond which a logarithmic axis names powers of ten only
LONG_AXIS = 80.0
CAPTION_COLOUR, GUIDE_COLOUR = "0.3", "0.45"

RULES: Any = {  # for matplotlib
    "font.size": TEXT_SIZE,
    "axes.titlesize": TEXT_SIZE + 0.3,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": f"cycler('color', {[*STRATEGY_COLOURS[1:], STRATEGY_COLOURS[0]]})",
    "grid.color": "0.9",
    "legend.frameon": False,
    "legend.fontsize": TEXT_SIZE - 0.4,
    "lines.linewidth": 1.7,
    "lines.markersize": 4.5,
    "errorbar.capsize": 2.0,
    "xtick.labelsize": TEXT_SIZE - 0.5,
    "ytick.labelsize": TEXT_SIZE - 0.5,
}


@contextmanager
def figure(
    height: float, rows: int = 1, columns: int = 1, width: float = WIDTH, **subplots: Any
) -> Iterator[tuple[Any, Any]]:
    """Open a figure in the common style; yield it with its panels `[row, column]`.

    Width and height are in inches; the height leaves out title, caption and legend.
    """
    with lazy.matplotlib.rc_context(RULES):
        made = lazy.figure.Figure(figsize=(width, height))
        yield made, made.subplots(rows, columns, squeeze=False, **subplots)


def save(
    made: Figure,
    path: Path,
    title: str,
    caption: str,
    legend: Sequence[Any] = (),
    legend_columns: int | None = None,
) -> None:
    """Write a figure as a PNG, atomically, with title, caption and legend; see `put_words`."""
    put_words(made, title, caption, legend, legend_columns)
    with replacing(path) as written:
        write_png(made, written)


DATA = "Data"  # the text of a PNG that has what is drawn


def write_png(made: Figure, path: Path, content: Any = None) -> None:
    """Write a figure as a PNG of at most 64 colours: a quarter of the size, without a visible difference.

    The file carries the data drawn as JSON: `content`, or else the data read from the figure.
    """
    drawn = io.BytesIO()
    made.savefig(drawn, dpi=DPI, format="png")
    info = lazy.png.PngInfo()
    info.add_itxt(DATA, json.dumps(_shown(made) if content is None else content), zip=True)
    whole = lazy.pillow.open(drawn).convert("RGB")
    few = whole.quantize(64, lazy.pillow.Quantize.MAXCOVERAGE, dither=lazy.pillow.Dither.NONE)
    few.save(path, "PNG", optimize=True, pnginfo=info)


def _shown(made: Figure) -> dict[str, Any]:
    """Return the texts of a figure, and the points, areas and bars of its panels in their axes' units."""
    panels = [
        {
            "title": panel.get_title(),
            "axes": [panel.get_xlabel(), panel.get_ylabel()],
            "texts": [text.get_text() for text in panel.texts],
            "lines": [_plain(line.get_xydata()) for line in panel.lines],
            "points": [_plain(drawn.get_offsets()) for drawn in panel.collections],
            "areas": [
                _plain(path.vertices) for drawn in panel.collections for path in drawn.get_paths()
            ],
            "bars": [
                _plain(bar.get_path().transformed(bar.get_patch_transform()).vertices)
                for bar in panel.patches
            ],
            "images": [_plain(image.get_array()) for image in panel.images],
        }
        for panel in made.axes
    ]
    return {"words": [text.get_text() for text in made.texts], "panels": panels}


def _plain(numbers: Any) -> Any:
    """Return numbers as lists, to six digits; None where one is not finite."""
    values = np.ma.filled(np.ma.asarray(numbers, float), np.nan).tolist()

    def rounded(value: Any) -> Any:
        if isinstance(value, list):
            return [rounded(element) for element in value]
        return float(f"{value:.6g}") if math.isfinite(value) else None

    return rounded(values)


def put_words(
    made: Figure,
    title: str,
    caption: str,
    legend: Sequence[Any] = (),
    legend_columns: int | None = None,
) -> None:
    """Put title and legend above the panels and the caption below; the panels fill the rest.

    `legend` are handles with labels for the whole figure, in as many columns as fit.
    """
    width, height = made.get_size_inches()
    heading = textwrap.wrap(title, int(TITLE_LETTERS_PER_INCH * width))
    lines = textwrap.wrap(" ".join(caption.split()), int(LETTERS_PER_INCH * width))
    columns = legend_columns or columns_of(legend, width)
    below = LINE_INCHES * len(lines) + 0.14
    top = 0.1 + TITLE_INCHES * len(heading)
    above = top + 0.1 + LEGEND_INCHES * -(-len(legend) // columns)
    total = height + below + above
    made.set_size_inches(width, total)
    words = "\n".join(heading)
    made.text(0.012, 1 - 0.07 / total, words, fontsize=TITLE_SIZE, va="top", fontweight="bold")
    if legend:
        made.legend(
            handles=list(legend), loc="upper left", bbox_to_anchor=(0.0, 1 - top / total),
            labelspacing=0.25, handlelength=handle_length(legend), columnspacing=1.3, ncols=columns, borderaxespad=0.2,
        )  # fmt: skip
    words = "\n".join(lines)
    made.text(0.012, 0.05 / total, words, fontsize=CAPTION_SIZE, color=CAPTION_COLOUR, va="bottom")
    room = (0, below / total, 1, 1 - above / total)
    made.tight_layout(pad=0.5, w_pad=1.2, h_pad=1.2, rect=room)


def handle_length(legend: Sequence[Any]) -> float:
    """Return the length of a legend's handles, in font sizes: long enough to show dashes beside a marker."""
    marked = [
        handle for handle in legend if getattr(handle, "get_marker", lambda: "None")() != "None"
    ]
    return 3.2 if any(handle.get_linestyle() not in ("-", "None") for handle in marked) else 1.8


def columns_of(legend: Sequence[Any], width: float) -> int:
    """Return how many columns of a legend fit in `width` inches, each as wide as its longest entry."""
    sizes = [
        LEGEND_LETTER_INCHES * len(handle.get_label()) + LEGEND_HANDLE_INCHES for handle in legend
    ]
    for columns in range(len(sizes), 1, -1):
        rows, longer = divmod(len(sizes), columns)  # that many columns have a row more
        ends = list(accumulate([rows + 1] * longer + [rows] * (columns - longer), initial=0))
        if sum(max(sizes[start:end]) for start, end in pairwise(ends)) <= width:
            return columns
    return 1


def class_style(slo_class: str) -> dict[str, Any]:
    """Return colour, line and marker of an SLO class; of all requests if `slo_class` is empty."""
    name = slo_class or ALL_REQUESTS
    return {
        "color": CLASS_COLOURS.get(name, BLACK),
        "linestyle": CLASS_LINES.get(name, "-"),
        "marker": CLASS_MARKS.get(name, "o"),
    }


def class_words(slo_class: str) -> str:
    """Return the name of an SLO class for a heading or label."""
    return "all requests" if slo_class in ("", ALL_REQUESTS) else slo_class


def class_handles(classes: Iterable[str], **further: Any) -> list[Any]:
    """Return a legend entry for each class: a line with its marker."""
    return [line_handle(class_words(name), **(class_style(name) | further)) for name in classes]


def line_handle(label: str, **style: Any) -> Any:
    """Return an entry of a legend: a line, or a marker alone with linestyle `none`."""
    return lazy.lines.Line2D([], [], label=label, **style)


def area_handle(label: str, **style: Any) -> Any:
    """Return an entry of a legend: a filled area."""
    return lazy.patches.Patch(label=label, **style)


def panel_each(panels: np.ndarray, names: Sequence[str]) -> Iterator[tuple[Axes, str]]:
    """Pair each name with a panel, row by row; hide the panels that are left over."""
    flat = np.asarray(panels).ravel()
    for panel in flat[len(names) :]:
        panel.set_visible(False)
    return zip(flat, names, strict=False)


def plain_log(panel: Axes, axis: str, ticks: Sequence[float] | None = None) -> None:
    """Make an axis (`x` or `y`) logarithmic, with plain numbers at its ticks."""
    getattr(panel, f"set_{axis}scale")("log")
    ruler = getattr(panel, f"{axis}axis")
    if ticks is not None:
        getattr(panel, f"set_{axis}ticks")(list(ticks), [f"{tick:,g}" for tick in ticks])
        getattr(panel, f"set_{axis}ticks")([], minor=True)
        return
    low, high = getattr(panel, f"get_{axis}lim")()
    is_long = high > LONG_AXIS * low
    ruler.set_major_locator(lazy.ticker.LogLocator(subs=(1.0,) if is_long else (1.0, 2.0, 5.0)))
    plain = lazy.ticker.ScalarFormatter()
    plain.set_scientific(False)
    ruler.set_major_formatter(plain)
    ruler.set_minor_formatter(lazy.ticker.NullFormatter())
