"""The hypotheses as a page for a reviewer."""

from __future__ import annotations

from sweeps.promote.hypotheses.document import HypothesisDocument, TransferHypothesis
from sweeps.promote.maps.page import table

_TRACKS = {
    "A": "Track A: what was confirmed must hold",
    "B": "Track B: what the simulator has no model of",
    "C": "Track C: what must not change",
}


def hypotheses_page(document: HypothesisDocument) -> str:
    """Markdown, rendered from the data."""
    lines = [
        f"# Hypotheses of {document.strategy}",
        "",
        f"Baseline {document.baseline}, target {document.target}, scenarios {document.inventory}. Rates are shares "
        "of the rate at which the simulated baseline saturates. Rendered from `hypotheses.yaml`.",
    ]
    for track, title in _TRACKS.items():
        found = [one for one in document.hypotheses if one.track == track]
        lines += ["", f"## {title}", ""]
        if track == "C":
            lines += table(["id", "share of saturation", "origin"], (_short(one) for one in found))
        else:
            for one in found:
                lines += _section(one)
    if document.not_transferred:
        lines += ["", "## Confirmed rows of the ledger that are not tested", ""]
        cells = ([one.row, one.reason] for one in document.not_transferred)
        lines += table(["row", "why"], cells)
    return "\n".join(lines) + "\n"


def _short(one: TransferHypothesis) -> list[str]:
    return [one.id, f"{one.operating_point.share:g}", one.origin]


def _section(one: TransferHypothesis) -> list[str]:
    point, metric, profile = one.operating_point, one.metric, one.profile
    magnitude = one.expected.magnitude_sim
    size = (
        magnitude
        if isinstance(magnitude, str)
        else f"{magnitude['percent']:+.1f} % [{magnitude['low']:+.1f}, {magnitude['high']:+.1f}]"
    )
    return [
        f"### {one.id}",
        "",
        one.statement,
        "",
        f"- {one.family}, {one.type}, {one.vvuq}; arms {', '.join(one.arms)}; {one.runs} runs each",
        f"- {metric.path}, {metric.statistic}, {metric.unit}: expected {one.expected.direction}, in simulation {size}",
        f"- load: {one.workload.rate:g} requests/s, {point.share:g} of saturation at {point.saturation_rate:g}",
        f"- profile: {profile.harness or profile.reason}",
        f"- before: {'; '.join(one.preconditions)}",
        f"- why: {one.mechanism}",
        f"- {one.diagnostic}",
        f"- from: {one.origin}",
        "",
    ]
