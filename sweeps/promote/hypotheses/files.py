"""Make stage 3: hypotheses as data and as a page. The rules of gate 2 look for what is not of its origin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping
from sweeps.promote.hypotheses.document import (
    HYPOTHESES,
    PAGE,
    HypothesisDocument,
    inventory,
    parse_hypotheses,
)
from sweeps.promote.hypotheses.origins import confirmed_claims
from sweeps.promote.hypotheses.tracks import TrackMaker, track_a, track_b, track_c
from sweeps.promote.maps import DICTIONARY, GapRow, SignalRow, parsed_rows
from sweeps.promote.promotion import Files, Finding, Promotion, file_named
from sweeps.promote.store import render, yaml_text
from sweeps.strategies.parts import ClosedPart

_TRACKS = {
    "A": "Track A: what was confirmed must hold",
    "B": "Track B: what the simulator has no model of",
    "C": "Track C: what must not change",
}


def hypothesis_files(promotion: Promotion, maps: Files, ledger: Path | None = None) -> Files:
    """Return `hypotheses.yaml` and `hypotheses.md`.

    Args:
        promotion: what is promoted where.
        maps: the files of earlier stages. The dictionary decides which gaps are tested; objectives and deadline
            headers of the classes are taken from the configurations, if these are there.
        ledger: folder of the ledger whose confirmed rows make track A; the present folder if not given.

    Raises:
        ConfigError: there is no dictionary, or a row of it is not allowed.
    """
    document = document_of(promotion, maps, ledger or Path())
    plain = document.model_dump(mode="json", exclude_none=True)
    return {HYPOTHESES: yaml_text(plain), PAGE: _page(document)}


def _page(document: HypothesisDocument) -> str:
    return render("hypotheses.md.j2", document=document, tracks=_TRACKS)


def document_of(promotion: Promotion, maps: Files, ledger: Path) -> HypothesisDocument:
    """Return the hypotheses as checked data; the saturation of each workload is simulated."""
    dictionary = _dictionary(maps)
    gaps = parsed_rows(GapRow, _without(dictionary["map_c"], "used"), f"{DICTIONARY}: map_c")
    read = [row for row in dictionary["map_b"] if row.get("used")]
    signals = parsed_rows(SignalRow, _without(read, "used"), f"{DICTIONARY}: map_b")
    claims, left = confirmed_claims(promotion, ledger)
    maker = TrackMaker(promotion, maps)
    pinned = inventory()
    return HypothesisDocument(
        strategy=promotion.given,
        baseline=promotion.baseline.name,
        target=promotion.target,
        inventory=f"{pinned.repository}@{pinned.commit}",
        hypotheses=(*track_a(maker, claims), *track_b(maker, gaps, signals), *track_c(maker)),
        not_transferred=tuple(left),
    )


def _dictionary(maps: Files) -> dict[str, Any]:
    path = file_named(maps, DICTIONARY)
    if path is None:
        raise ConfigError(f"there is no {DICTIONARY}; run the stage maps")
    found = dict(read_mapping(maps[path], path))
    for key in ("map_b", "map_c"):
        rows = found.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{path}: {key} is no list of rows; run the stage maps again")
    return found


def _without(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != key} for row in rows]


def origin_findings(
    promotion: Promotion, files: Files, ledger: Path | None = None
) -> Iterator[Finding]:
    """Yield hypotheses that are not what ledger, Map C and inventory make them, and a page that is not theirs."""
    path = file_named(files, HYPOTHESES)
    if path is None:
        return
    try:
        document = parse_hypotheses(files[path], path)
    except ConfigError:
        return  # told by another rule
    if files.get(PAGE) != _page(document):
        message = f"it is not the page of {path}; make the stage again"
        yield Finding("IMPORTANT", "not-of-its-origin", PAGE, message)
    there = {hypothesis.id: hypothesis for hypothesis in document.hypotheses}
    made = document_of(promotion, files, ledger or Path())
    for name in _differing(made, document, "hypotheses"):
        message = f"{name} is not that of the promotion; make the stage again"
        yield Finding("CRITICAL", "not-of-its-origin", path, message)
    for hypothesis in made.hypotheses:
        other = there.pop(hypothesis.id, None)
        if other is None:
            message = f"{hypothesis.id} is missing, and {hypothesis.origin} asks for it; make the stage again"
            yield Finding("CRITICAL", "not-of-its-origin", path, message)
            continue
        for field in _differing(hypothesis, other)[:1]:
            message = f"{hypothesis.id}: {field} is not what {hypothesis.origin} gives; make the stage again"
            yield Finding("CRITICAL", "not-of-its-origin", path, message)
    for name in there:
        message = f"{name} comes from no row of ledger, maps or inventory; say why it is there in the decision"
        yield Finding("IMPORTANT", "not-of-its-origin", path, message)


def _differing(closed_part: ClosedPart, other: ClosedPart, but: str = "") -> list[str]:
    """Return the fields in which two parts of one kind differ; one may be left out."""
    names = (name for name in type(closed_part).model_fields if name != but)
    return [name for name in names if getattr(closed_part, name) != getattr(other, name)]
