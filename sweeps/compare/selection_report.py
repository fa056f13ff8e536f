"""The outcome of a selection, as a document and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.files.atomic_write import plain
from blis_jax.files.formats import number_of
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.findings import Answer, Findings, Quantity, Remarks, Row, Sentence, Table
from blis_jax.reports.words import cluster_line, limits_lines, metric_words, unit_text
from blis_jax.statistics.paired import Difference
from blis_jax.statistics.sequential import MISSED
from sweeps.claims.grammar import parse_constraint
from sweeps.compare.document import CommonSetting, setting_json
from sweeps.compare.report import quantity
from sweeps.runs.measured import versions

if TYPE_CHECKING:
    from sweeps.compare.selection import FinalAnswer, FinalQuestion
    from sweeps.strategies.arms import Arm

Fresh = tuple[range, list[Difference]]


def document_of(
    setting: CommonSetting,
    choice: FinalQuestion,
    arms: Sequence[Arm],
    chosen: FinalAnswer,
    fresh: Fresh | None,
) -> dict[str, Any]:
    """Return the selection as plain data."""
    selection = chosen.selection
    first = setting.seeds[0]
    document = {
        "format": number_of("selection"),
        "kind": "selection",
        "versions": versions(),
        **setting_json(setting),
        "seeds": list(range(first, first + chosen.num_seeds)),
        "cluster": cluster_line({arm.name: arm.config for arm in arms}),
        "procedure": "Kim and Nelson (2001), fully sequential; constraints by Andradóttir and Kim (2010)",
        "metric": choice.metric,
        "indifference": choice.zone,
        "constraints": [str(constraint) for constraint in choice.constraints],
        "tolerance": choice.tolerance,
        "confidence": choice.confidence,
        "most_seeds": choice.most_seeds,
        "is_over": selection.is_over,
        "winner": None if chosen.winner is None else arms[chosen.winner].name,
        "arms": [
            {
                "name": arm.name,
                "mean": chosen.means[at],
                "num_seeds": chosen.seeds_of[at],
                "constraints": selection.feasible[at] if choice.constraints else None,
                "worse_than": None if (by := selection.out_by[at]) is None else arms[by].name,
                "failed": arm.name in chosen.failed,
                "is_left": at in selection.left,
            }
            for at, arm in enumerate(arms)
        ],
        "fresh": None,
    }
    if fresh is not None:
        seeds, differences = fresh
        document["fresh"] = {
            "seeds": list(seeds),
            "reference": arms[0].name,
            "differences": [
                {"metric": name, **difference.to_json()}
                for name, difference in zip(choice.names, differences, strict=True)
            ],
        }
    return dict(plain(document))


def findings_of(document: Mapping[str, Any]) -> Findings:
    """Return the findings of a selection for every output."""
    arms = tuple(
        Row((arm["name"], Quantity(arm["mean"]), Quantity.whole(arm["num_seeds"]), _state(arm)))
        for arm in document["arms"]
    )
    sections: list[Table | Remarks] = [
        Table(("arm", metric_words(document["metric"]), "seeds", "state"), arms, name="arms")
    ]
    constrained = (parse_constraint(text).metric for text in document["constraints"])
    limits = limits_lines((document["metric"], *constrained), document["targets"])
    sections.append(Remarks(limits, is_brief=True))
    if document["fresh"] is not None:
        sections += _fresh(document)
    level = f"{100 * document['confidence']:g} %"
    num_arms = len(document["arms"])
    return Findings(
        Answer(
            asked=f"Which of {num_arms} arms is best in {metric_words(document['metric'])}? Workload "
            f"{document['workload']}, {len(document['seeds'])} seeds.",
            verdict=(Sentence.of(_verdict(document)),),
            sure=Sentence.of(f"at least {level} for the choice, {document['procedure']}."),
            price=Sentence.of(
                Quantity.whole(sum(arm["num_seeds"] for arm in document["arms"])),
                " runs to choose",
                *_fresh_price(document),
                ".",
            ),
            next="more --most-seeds or a larger --indifference tell them apart."
            if document["winner"] is None
            else "blis-jax compare says in what else the winner differs.",
            cluster=document["cluster"],
        ),
        tuple(sections),
    )


def _fresh_price(document: Mapping[str, Any]) -> tuple[str | Quantity, ...]:
    if document["fresh"] is None:
        return ()
    return (", and ", Quantity.whole(2 * len(document["fresh"]["seeds"])), " on fresh seeds")


def _fresh(document: Mapping[str, Any]) -> tuple[Table, Remarks]:
    """Return the winner's differences from the first arm, on seeds without a part in the choice."""
    fresh = document["fresh"]
    first, last = fresh["seeds"][0], fresh["seeds"][-1]
    rows = tuple(
        Row(
            (
                metric_words(difference["metric"]),
                Quantity(difference["reference_mean"]),
                Quantity(difference["mean"]),
                quantity(difference["simultaneous"]),
                quantity(difference["simultaneous_percent"]),
                difference["verdict"],
            )
        )
        for difference in fresh["differences"]
    )
    heading = (
        f"On {len(fresh['seeds'])} fresh seeds ({first} to {last}), {document['winner']} against "
        f"{fresh['reference']}:"
    )
    columns = ("metric", fresh["reference"], document["winner"], "difference", "in %", "")
    luck = "The fresh seeds had no part in the choice, so the winner's luck is not in them."
    return Table(columns, rows, heading), Remarks((luck,))


def _verdict(document: Mapping[str, Any]) -> str:
    zone = f"{document['indifference']:g}{unit_text(lookup(document['metric'])[0].unit)}"
    kept = " of those that keep the constraints" if document["constraints"] else ""
    if document["winner"] is not None:
        return f"{document['winner']} is the best{kept}, or within {zone} of the best."
    left = [arm["name"] for arm in document["arms"] if arm["is_left"]]
    if not left:
        return "no arm keeps all constraints."
    return f"{', '.join(left)} are not told apart; the best is among them."


def _state(arm: Mapping[str, Any]) -> str:
    if arm["failed"]:
        return "out: a run did not come to its end"
    if arm["constraints"] == MISSED:
        return "out: misses a constraint"
    if arm["worse_than"] is not None:
        return f"out: worse than {arm['worse_than']}"
    return "left"
