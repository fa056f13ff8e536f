"""Findings in every form, compared number by number."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from blis_jax.reports import render
from blis_jax.reports.drawing import drawn
from blis_jax.reports.findings import Findings, Quantity
from blis_jax.reports.pictures import Axis, Bars, Guide, Picture, Series, Tiles, Words
from blis_jax.reports.render import WIDTH, answer_html, markdown, section_html, text

NUMBER = re.compile(r"[−+]?\d[\d.]*")


def numbers(shown: str) -> set[str]:
    """Numbers of a text, as they are written."""
    return {found.rstrip(".") for found in NUMBER.findall(shown)}


def json_numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for entry in value.values():
            yield from json_numbers(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from json_numbers(entry)
    elif isinstance(value, float | int) and not isinstance(value, bool):
        yield value


def assert_all_forms_agree(found: Findings) -> None:
    """Each number of the document is in every form, and no form has one of its own."""
    shown = text(found, has_all=True)
    page = answer_html(found.answer) + "".join(map(section_html, found.sections))
    words = html.unescape(re.sub(r"<[^>]*>", " ", page))
    assert numbers(shown) == numbers(markdown(found)) == numbers(words)
    for sentence in (*found.answer.verdict, found.answer.sure, found.answer.price):
        assert " ".join(str(sentence).split()) in " ".join(shown.split())
    cells = [cell for table in found.tables for row in table.rows for cell in row.cells]
    for cell in cells:
        assert str(cell) in shown and str(cell).replace("|", "\\|") in markdown(found)
        assert html.escape(str(cell)) in page
    parts = [
        part
        for one in (*found.answer.verdict, found.answer.sure, found.answer.price)
        for part in one.parts
    ]
    values = [value for value in (*parts, *cells) if isinstance(value, Quantity)]
    ends = [end for one in values for end in (one.mean, one.low, one.high) if end is not None]
    document = found.to_json()
    pictures = document.pop("pictures")
    assert sorted(json_numbers(document)) == sorted(ends)
    for picture, of_picture in zip(found.pictures, pictures, strict=True):
        assert_a_picture_agrees(picture, of_picture)
    assert max(map(len, text(found).splitlines())) <= WIDTH
    assert max(map(len, shown.splitlines())) <= WIDTH


def assert_a_picture_agrees(picture: Picture, document: dict[str, Any]) -> None:
    """The JSON has each number of a picture, and the drawing a mark at each."""
    marks = [mark for mark in picture.marks if not isinstance(mark, Words)]
    of_marks = [
        value
        for mark in marks
        for one in fields(mark)
        if one.name not in ("height", "bounds", "steps", "style", "colours")
        for value in np.ravel(np.array(getattr(mark, one.name), object)).tolist()
        if isinstance(value, float | int) and not isinstance(value, bool) and np.isfinite(value)
    ]
    assert sorted(json_numbers(document["panels"])) == sorted(map(float, of_marks))
    flat = itertools.chain.from_iterable(picture.panels)
    with drawn(picture) as made:
        axes = [one for one in made.axes if one.get_label() != "<colorbar>"]
        for panel, of_panel in zip(flat, axes, strict=True):
            assert (panel is not None) == of_panel.get_visible()
            lines = [line.get_xydata() for line in of_panel.lines]
            meshes = [one.get_array() for one in of_panel.collections if hasattr(one, "norm")]
            widths = [bar.get_width() for bar in of_panel.patches if hasattr(bar, "get_width")]
            for mark in () if panel is None else panel.marks:
                if isinstance(mark, Series):
                    at = np.stack([where(panel.x, mark.x), where(panel.y, mark.y)], axis=-1)
                    assert any(
                        line.shape == at.shape and np.allclose(line, at, equal_nan=True)
                        for line in lines
                    )
                elif isinstance(mark, Tiles):
                    values = np.array(mark.values, float).ravel()
                    assert any(
                        np.allclose(np.ma.filled(one, np.nan).ravel(), values, equal_nan=True)
                        for one in meshes
                        if one is not None and one.size == values.size
                    )
                elif isinstance(mark, Bars):
                    assert all(
                        any(np.isclose(one, width) for width in widths) for one in mark.length
                    )
                elif isinstance(mark, Guide) and mark.across == "x":
                    assert any(
                        np.allclose(line[:, 0], where(panel.x, [mark.at])[0]) for line in lines
                    )


def where(axis: Axis, values: Any) -> np.ndarray:
    """The places of values on an axis."""
    found = np.array(values, float)
    if axis.scale == "percent":
        return np.clip(1 + found / 100, 1 / 256, 256)
    return np.maximum(1 - found / 100, 2e-4) if axis.scale == "share" else found


def shown_findings(monkeypatch: pytest.MonkeyPatch) -> list[Findings]:
    """A list to which commands add the findings that they show from now on."""
    seen: list[Findings] = []
    original = render.show

    def show(findings: Findings, *parts: bool) -> None:
        seen.append(findings)
        original(findings, *parts)

    monkeypatch.setattr(render, "show", show)
    return seen
