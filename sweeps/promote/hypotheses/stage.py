"""Stage 3: the hypotheses of a promotion, as data and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping
from sweeps.promote.hypotheses.confirmed import confirmed_claims
from sweeps.promote.hypotheses.document import HYPOTHESES, PAGE, HypothesisDocument
from sweeps.promote.hypotheses.inventory import inventory
from sweeps.promote.hypotheses.page import hypotheses_page
from sweeps.promote.hypotheses.tracks import TrackMaker, track_a, track_b, track_c
from sweeps.promote.maps.plain import yaml_text
from sweeps.promote.maps.rows import GapRow, SignalRow, parsed_rows
from sweeps.promote.maps.stage import DICTIONARY
from sweeps.promote.promotion import Files, Promotion


def hypothesis_files(promotion: Promotion, maps: Files, ledger: Path | None = None) -> Files:
    """`hypotheses.yaml` and `hypotheses.md`.

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
    return {HYPOTHESES: yaml_text(plain), PAGE: hypotheses_page(document)}


def document_of(promotion: Promotion, maps: Files, ledger: Path) -> HypothesisDocument:
    """The hypotheses as checked data."""
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
        hypotheses=(
            *track_a(maker, claims),
            *track_b(maker, gaps, signals),
            *track_c(maker),
        ),
        not_transferred=tuple(left),
    )


def _dictionary(maps: Files) -> dict[str, Any]:
    path = next((path for path in sorted(maps) if path.rpartition("/")[2] == DICTIONARY), None)
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
