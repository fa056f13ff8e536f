"""Make stage 3: hypotheses as data and as a page; and the rules of gate 2 that compare hypotheses with their origin."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping
from sweeps.promote.evidence.hypotheses import (
    HYPOTHESES,
    PAGE,
    HypothesisDocument,
    inventory,
    parse_hypotheses,
)
from sweeps.promote.evidence.origins import confirmed_claims, needs_classes, writes_priority
from sweeps.promote.evidence.profiles import MOST_THREADS, overlays_of, pods_of, requests_of
from sweeps.promote.evidence.tracks import TrackMaker, track_a, track_b, track_c
from sweeps.promote.llmd.documents import CONFIG, FLAGS
from sweeps.promote.llmd.picker import IN_FLIGHT_DETECTOR
from sweeps.promote.maps import DICTIONARY, GapRow, SignalRow, parsed_rows
from sweeps.promote.promotion import (
    BASELINE,
    ENGINE_PRIORITY,
    TREATMENT,
    Files,
    Finding,
    Promotion,
    file_named,
)
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
        promotion: the strategy, its baseline and the target.
        maps: the files of earlier stages. The dictionary decides which gaps are tested; the objectives and deadline
            headers of the classes come from the configurations, if these exist.
        ledger: folder of the ledger whose confirmed rows become track A; the current folder if not given.

    Raises:
        ConfigError: the dictionary is missing, or one of its rows is not allowed.
    """
    document = document_of(promotion, maps, ledger or Path())
    plain = document.model_dump(mode="json", exclude_none=True)
    return {HYPOTHESES: yaml_text(plain), PAGE: _page(document)}


def _page(document: HypothesisDocument) -> str:
    return render("hypotheses.md.j2", document=document, tracks=_TRACKS)


def document_of(promotion: Promotion, maps: Files, ledger: Path) -> HypothesisDocument:
    """Build the hypotheses as checked data; the saturation rate of each workload is simulated."""
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
    dictionary = dict(read_mapping(maps[path], path))
    for key in ("map_b", "map_c"):
        rows = dictionary.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(f"{path}: {key} is no list of rows; run the stage maps again")
    return dictionary


def _without(rows: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != key} for row in rows]


def origin_findings(
    promotion: Promotion, files: Files, ledger: Path | None = None
) -> Iterator[Finding]:
    """Yield hypotheses that differ from what ledger, maps and inventory give, and a page that differs from its data."""
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
    """Return the names of the fields in which two parts of the same type differ; the field `but` is skipped."""
    names = (name for name in type(closed_part).model_fields if name != but)
    return [name for name in names if getattr(closed_part, name) != getattr(other, name)]


# --- what reaches the target: a mechanism needs what its own profile and picker send ------------------


def mechanism_findings(files: Files) -> Iterator[Finding]:
    """Yield hypotheses whose mechanism needs something that their own profile or picker does not send."""
    path, flags = file_named(files, HYPOTHESES), file_named(files, f"arms/{TREATMENT}/{FLAGS}")
    if path is None or flags is None:
        return
    policy = read_mapping(files[flags], flags).get("scheduling-policy")
    if policy == "priority" and not writes_priority(files, TREATMENT):
        message = (
            "the treatment's engines order by the request field priority, and neither a harness nor the picker sends "
            f"it; put the plugin {ENGINE_PRIORITY} with its leads into the treatment's picker"
        )
        yield Finding("CRITICAL", "mechanism-not-sent", path, message)
    try:
        document = parse_hypotheses(files[path], path)
    except ConfigError:
        return  # told by another rule
    for hypothesis in document.hypotheses if needs_classes(files) else ():
        if hypothesis.track == "A" and hypothesis.profile.harness not in (None, "priority-mix"):
            message = (
                f"{hypothesis.id}: the treatment decides by the class of a request, and {hypothesis.profile.harness} "
                "sends none; use priority-mix"
            )
            yield Finding("CRITICAL", "mechanism-not-sent", path, message)
    yield from _queue_findings(files, document, path)


def _queue_findings(files: Files, document: HypothesisDocument, path: str) -> Iterator[Finding]:
    """Yield hypotheses whose load is too low for the treatment's router queue, if it has one, ever to form."""
    config = next(file for file in files if file.endswith(f"arms/{TREATMENT}/{CONFIG}"))
    picker = read_mapping(files[config], config)
    most = next(
        (
            (plugin.get("parameters") or {}).get("maxConcurrency", 100)
            for plugin in picker["plugins"]
            if plugin["type"] == IN_FLIGHT_DETECTOR
        ),
        None,
    )
    if most is None or "priorityBands" not in picker.get("flowControl", {}):
        return
    replicas = overlays_of(files).get(BASELINE, {}).get("decode", {}).get("replicas", 1)
    for hypothesis in document.hypotheses:
        clients = min(requests_of(hypothesis), MOST_THREADS * pods_of(hypothesis))
        is_meant = (
            hypothesis.track == "A"
            and hypothesis.profile.harness is not None
            and hypothesis.subject == TREATMENT
        )
        if is_meant and most * replicas >= clients:
            message = (
                f"{hypothesis.id}: the router holds requests back from {most} x {replicas} in flight on, and its "
                f"clients have {clients} at most, so its queue never forms; lower maxConcurrency or send more"
            )
            yield Finding("CRITICAL", "mechanism-not-sent", path, message)
