"""Tooltips of a picture on a page: each mark's name, value, interval and run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal
from xml.etree import ElementTree

from blis_jax.reports.pictures import (
    Axis,
    Bars,
    Guide,
    Mark,
    Number,
    Numbers,
    Panel,
    Picture,
    Series,
    Tiles,
    Words,
)
from blis_jax.reports.words import number

Part = Literal["points", "each", "whole"]  # of a mark: its points, each bar or tile, all of it
PANEL = "panel"
MOST_TOLD = 50  # values along a line
SVG = "http://www.w3.org/2000/svg"
GROUP, TITLE, IMAGE = (f"{{{SVG}}}{name}" for name in ("g", "title", "image"))
SHAPES = {f"{{{SVG}}}{name}" for name in ("path", "use")}
NO_XML = re.compile("[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ElementTree.register_namespace("", SVG)
ElementTree.register_namespace("xlink", "http://www.w3.org/1999/xlink")


def mark_id(row: int, column: int, at: int, part: Part) -> str:
    """Return the id of a part of a mark in the drawing."""
    return f"mark {row} {column} {at} {part}"


def with_tooltips(svg: str, picture: Picture) -> str:
    """Return the SVG with a title element in every mark, and without the ids of its groups."""
    root = ElementTree.fromstring(NO_XML.sub("", svg))
    shapes: dict[str, list[tuple[ElementTree.Element, ElementTree.Element]]] = {}
    for group in list(root.iter(GROUP)):
        name = group.attrib.pop("id", "")
        if name.startswith("mark "):
            shapes.setdefault(name, []).extend(_shapes(group))
        elif name.startswith(PANEL):
            _, row, column = name.split()
            _tell_images(group, picture, int(row), int(column))
    for name, pairs in shapes.items():
        _, row, column, at, part = name.split()
        panel = _panel(picture, int(row), int(column))
        mark = panel.marks[int(at)]
        whole, each = _whole(panel, mark), list(_each(panel, mark))
        if part == "points":
            step = stride(mark)
            drawn = zip(each[::step], _drawn(mark)[::step], strict=True)
            each = [text for text, is_drawn in drawn if is_drawn]
            pairs = [pair for pair in pairs if pair[1].tag.endswith("use")] or pairs
        texts = each if part != "whole" and len(each) == len(pairs) else [(whole, "")] * len(pairs)
        for (parent, shape), (text, run) in zip(pairs, texts, strict=True):
            if text:
                _tell(parent, shape, text, run)
    return ElementTree.tostring(root, encoding="unicode")


def stride(mark: Mark) -> int:
    """Return the step between points of a series with a tooltip: 1, or more on a line of many points."""
    assert isinstance(mark, Series)
    is_line = mark.style.line and not mark.style.marker
    return math.ceil(len(mark.x) / MOST_TOLD) if is_line and len(mark.x) else 1


def _shapes(
    group: ElementTree.Element,
) -> Iterator[tuple[ElementTree.Element, ElementTree.Element]]:
    """Yield each drawn shape with its parent; definitions are not drawn."""
    for child in group:
        if child.tag in SHAPES:
            yield group, child
        elif child.tag == GROUP:
            yield from _shapes(child)


def _tell(
    parent: ElementTree.Element, shape: ElementTree.Element, text: str, run: str = ""
) -> ElementTree.Element:
    """Wrap a shape in a group with a title; `run` marks it so that the page can highlight a run."""
    told = ElementTree.Element(GROUP, {"data-run": run} if run else {})
    ElementTree.SubElement(told, TITLE).text = text
    parent[list(parent).index(shape)] = told
    told.append(shape)
    return told


def _tell_images(group: ElementTree.Element, picture: Picture, row: int, column: int) -> None:
    """Add a tooltip to tiles that are drawn as an image; a script reads the value of a tile from the page's data."""
    images = [child for child in group if child.tag == IMAGE]
    panel = _panel(picture, row, column)
    tiles = [(at, mark) for at, mark in enumerate(panel.marks) if isinstance(mark, Tiles)]
    panels = [cell for cells in picture.panels for cell in cells if cell is not None]
    for image, (at, mark) in zip(images, tiles, strict=False):
        known = [value for values in mark.values for value in values if value is not None]
        ends = f"{number(min(known))} to {number(max(known))} {mark.unit}" if known else ""
        place = next(k for k, cell in enumerate(panels) if cell is picture.panels[row][column])
        told = _tell(group, image, _lines(panel.title, ends))
        told.attrib |= {"data-panel": str(place), "data-mark": str(at), "data-unit": mark.unit}


def _panel(picture: Picture, row: int, column: int) -> Panel:
    """Return a panel completed by the title and axis labels that it shares with neighbouring panels."""
    panel = picture.panels[row][column]
    assert panel is not None
    beside = [other for other in picture.panels[row] if other is not None]
    stacked = [cells[column] for cells in picture.panels if column < len(cells)]
    above = [other for other in stacked[:row] if other is not None]
    below = [other for other in stacked[row:] if other is not None]
    title = next((other.title for other in [panel, *reversed(above)] if other.title), "")
    x = _named(panel.x, [other.x for other in below])
    return replace(panel, title=title, x=x, y=_named(panel.y, [other.y for other in beside]))


def _named(axis: Axis, shared: Sequence[Axis]) -> Axis:
    """Return an axis completed by label and ticks of the axes that it shares them with."""
    label = axis.label or next((other.label for other in shared if other.label), "")
    if not axis.ticks or any(text for _, text in axis.ticks):
        return replace(axis, label=label)
    places = [at for at, _ in axis.ticks]
    full = (
        other.ticks for other in shared
        if other.ticks and any(text for _, text in other.ticks)
        and [at for at, _ in other.ticks] == places
    )  # fmt: skip
    return replace(axis, label=label, ticks=next(full, axis.ticks))


# --- words ----------------------------------------------------------------------------------------


def _whole(panel: Panel, mark: Mark) -> str:
    """Return the name of a mark, without its values."""
    if isinstance(mark, Guide):
        return mark.label and _lines(
            mark.label, _value(panel.y if mark.across == "y" else panel.x, mark.at)
        )
    name = (mark.told or mark.label) if isinstance(mark, Series) else getattr(mark, "label", "")
    return _lines(name, panel.title)


def _each(panel: Panel, mark: Mark) -> Iterator[tuple[str, str]]:
    """Yield the tooltip text and the run of each point, bar or tile."""
    whole = _whole(panel, mark)
    match mark:
        case Series():
            is_point = bool(mark.style.marker or mark.style.line)
            for at, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
                across = _value(panel.x, x, _ends(mark.x_low, mark.x_high, at), is_point)
                up = _value(panel.y, y, _ends(mark.y_low, mark.y_high, at), is_point)
                words = (
                    (across, up) if _is_named(panel.x) or not _is_named(panel.y) else (up, across)
                )
                yield _lines(whole, *words), f"{x:g}" if panel.x.is_run and x is not None else ""
        case Bars():
            for y, length in zip(mark.y, mark.length, strict=True):
                yield _lines(whole, _value(panel.y, y), _value(panel.x, length)), ""
        case Tiles():
            for y, row in zip(_middles(mark.y), mark.values, strict=True):
                for x, value in zip(_middles(mark.x), row, strict=True):
                    text = f"{number(value)} {mark.unit}" if value is not None else ""
                    yield _lines(whole, _value(panel.x, x), _value(panel.y, y), text), ""
        case Guide() | Words():
            return


def _lines(*texts: str) -> str:
    return "\n".join(text for text in texts if text)


def _drawn(mark: Mark) -> list[bool]:
    """Return which points of a series are drawn: those with finite x and y."""
    assert isinstance(mark, Series)
    known = (
        [value is not None and math.isfinite(value) for value in values]
        for values in (mark.x, mark.y)
    )
    return [all(pair) for pair in zip(*known, strict=True)]


def _ends(low: Numbers, high: Numbers, at: int) -> tuple[Number, Number] | None:
    return (low[at], high[at]) if len(low) else None


def _is_named(axis: Axis) -> bool:
    """Return whether the ticks of an axis are names at 0, 1, 2 and so on."""
    return bool(axis.ticks) and [at for at, _ in axis.ticks or ()] == list(
        range(len(axis.ticks or ()))
    )


def _value(
    axis: Axis, value: Number, ends: tuple[Number, Number] | None = None, is_point: bool = True
) -> str:
    """Return a text such as `TTFT P99 (ms): 141 [130, 150]`, or the name of the tick at the value."""
    label = f"{axis.label}: ".replace("\n", " ") if axis.label else ""
    if _is_named(axis) and value is not None:
        name = min(axis.ticks or (), key=lambda tick: abs(tick[0] - value))[1]
        return f"{label}{name}".replace("\n", " ")
    is_change = axis.scale == "percent"
    text = number(value, is_change) if is_point else ""
    if axis.is_whole and value is not None:
        text = f"{value:g}"
    if ends is not None:
        low, high = (number(end, is_change, value) for end in ends)
        text = f"{text} [{low}, {high}]".lstrip()
    return f"{label}{text}{' %' if axis.scale in ('percent', 'share') else ''}"


def _middles(edges: Numbers) -> list[Number]:
    pairs = pairwise(edges)
    return [None if a is None or b is None else (a + b) / 2 for a, b in pairs]
