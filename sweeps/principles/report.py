"""What the checks gave: how often they agree with the catalogue, and every figure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Sentence


def findings_of(checks: Sequence[Mapping[str, Any]]) -> Findings:
    """Return how many of each verdict, where the catalogue says otherwise, and every check's figures."""
    verdicts = [check["verdict"] for check in checks]
    claims = [claim for check in checks for claim in check["claims"]]
    num_run = sum("value" in claim for claim in claims)
    parts: list[str | Quantity] = [Quantity.whole(len(checks)), " checked: "]
    for at, name in enumerate(dict.fromkeys(verdicts)):
        parts += [", " * (at > 0), Quantity.whole(verdicts.count(name)), f" {name}"]
    differing = [check for check in checks if not check["agrees"]]
    names = ", ".join(check["id"] for check in differing)
    return Findings(
        Answer(
            asked="Do the principles that the catalogue records hold in this simulator?",
            verdict=(
                Sentence.of(*parts, "."),
                Sentence.of(
                    f"the catalogue says otherwise of {names}."
                    if names
                    else "All as in the catalogue."
                ),
            ),
            sure=_sure(claims),
            price=Sentence.of(
                Quantity.whole(num_run), " of ", Quantity.whole(len(claims)), " claims simulated."
            ),
            next="--strategy ARM says which of them a strategy relies on.",
        ),
        (
            Remarks(
                tuple(f"{_verdict(check)}: {check['statement']}" for check in differing),
                "Differs from the catalogue",
                is_brief=True,
            ),
            *(
                Remarks(
                    (f"{check['statement']} ({_verdict(check)})", *_figures(check)), check["id"]
                )
                for check in checks
            ),
        ),
    )


def _sure(claims: Sequence[Mapping[str, Any]]) -> Sentence:
    """Return on how many seeds claims were simulated, and how many were not."""
    counts = [len(claim["per_seed"]) for claim in claims if claim.get("per_seed")]
    num_left = sum("value" not in claim for claim in claims)
    words = " claim was" if num_left == 1 else " claims were"
    left = Quantity.whole(num_left), f"{words} not simulated, and nothing is said there."
    if not counts:
        return Sentence.of(*left)
    least, most = Quantity.whole(min(counts)), Quantity.whole(max(counts))
    seeds = (least,) if least == most else (least, " to ", most)
    return Sentence.of("each claim on ", *seeds, " seeds; ", *left)


def _verdict(check: Mapping[str, Any]) -> str:
    there, here = check["recorded_verdict"], check["verdict"]
    return here if check["agrees"] else f"{check['id']}: {there} there, {here} here"


def _figures(check: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each claim; those that could not be run for one reason together."""
    claims = check["claims"]
    yield from (claim["text"] for claim in claims if "value" in claim)
    reasons = [claim["reason"] for claim in claims if "value" not in claim]
    for reason in dict.fromkeys(reasons):
        yield f"{reasons.count(reason)} of {len(claims)} claims not run: {reason}"
    if check["remark"]:
        yield f"Remark: {check['remark']}"


def listing(entries: Sequence[Any]) -> list[str]:
    """List every entry with its verdict in the catalogue and its statement."""
    return [f"{entry.id:6} {entry.verdict:16} {entry.statement}" for entry in entries]
