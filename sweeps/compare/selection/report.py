"""What a selection came to, as a document and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.metrics.scalars import lookup
from blis_jax.metrics.summaries import ALL
from blis_jax.statistics.paired import Difference
from blis_jax.statistics.selection import MISSED
from sweeps.compare.document import difference_json, plain, setting_json, versions
from sweeps.reports.words import interval, number, short_title

if TYPE_CHECKING:
    from sweeps.compare.document import ComparedSetting
    from sweeps.compare.selection.stage import FinalAnswer, FinalQuestion
    from sweeps.strategies.arms import Arm

FORMAT = 1
Fresh = tuple[range, list[Difference]]


def document_of(
    setting: ComparedSetting,
    choice: FinalQuestion,
    arms: Sequence[Arm],
    chosen: FinalAnswer,
    fresh: Fresh | None,
) -> dict[str, Any]:
    """The selection as plain data."""
    found = chosen.selection
    first = setting.seeds[0]
    document = {
        "format": FORMAT,
        "kind": "selection",
        "versions": versions(),
        **setting_json(setting),
        "seeds": list(range(first, first + chosen.num_seeds)),
        "procedure": "Kim and Nelson (2001), fully sequential; constraints by Andradóttir and Kim (2010)",
        "metric": choice.metric,
        "indifference": choice.zone,
        "constraints": [str(one) for one in choice.constraints],
        "tolerance": choice.tolerance,
        "confidence": choice.confidence,
        "most_seeds": choice.most_seeds,
        "is_over": found.is_over,
        "winner": None if chosen.winner is None else arms[chosen.winner].name,
        "arms": [
            {
                "name": arm.name,
                "mean": chosen.means[at],
                "num_seeds": chosen.seeds_of[at],
                "constraints": found.feasible[at] if choice.constraints else None,
                "worse_than": None if (by := found.out_by[at]) is None else arms[by].name,
                "failed": arm.name in chosen.failed,
                "is_left": at in found.left,
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
                {"metric": name, **difference_json(one)}
                for name, one in zip(choice.names, differences, strict=True)
            ],
        }
    return dict(plain(document))


def lines_of(document: Mapping[str, Any]) -> list[str]:
    """The answer first."""
    lines = [_answer(document), *(_arm(document, one) for one in document["arms"])]
    fresh = document["fresh"]
    if fresh is not None:
        first, last = fresh["seeds"][0], fresh["seeds"][-1]
        lines.append(
            f"On {len(fresh['seeds'])} fresh seeds ({first} to {last}), {document['winner']} against "
            f"{fresh['reference']}:"
        )
        lines += [
            f"  {_words(one['metric'])}: {number(one['reference_mean'])} → {number(one['mean'])}, "
            f"{interval(one['simultaneous'])} ({interval(one['simultaneous_percent'])} %), {one['verdict']}"
            for one in fresh["differences"]
        ]
        lines.append("These seeds had no part in the choice, so the winner's luck is not in them.")
    return lines


def _words(name: str) -> str:
    metric, slo_class = lookup(name)
    return f"{short_title(metric.name)} of {slo_class or ALL} requests"


def _answer(document: Mapping[str, Any]) -> str:
    level = f"{100 * document['confidence']:g} %"
    unit = lookup(document["metric"])[0].unit
    zone = f"{document['indifference']:g} {unit if unit != '1' else ''}".strip()
    about = f"{_words(document['metric'])}, {len(document['seeds'])} seeds"
    kept = " of those that keep the constraints" if document["constraints"] else ""
    if document["winner"] is not None:
        return (
            f"{document['winner']} is the best{kept} ({about}): with a probability of {level} at least, if no other is "
            f"within {zone} of it; else it is within {zone} of the best."
        )
    left = [one["name"] for one in document["arms"] if one["is_left"]]
    if not left:
        return f"No arm keeps all constraints ({about}), with a probability of {level} at least."
    return (
        f"{len(document['seeds'])} seeds do not tell {', '.join(left)} apart ({about}); the best is among them with a "
        f"probability of {level} at least. Give more --most-seeds or a larger --indifference."
    )


def _arm(document: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    text = f"  {one['name']}: {number(one['mean'])} on {one['num_seeds']} seeds"
    if one["failed"]:
        return f"{text}, out: a run did not come to its end"
    if one["constraints"] == MISSED:
        return f"{text}, out: misses a constraint"
    if one["worse_than"] is not None:
        return f"{text}, out: worse than {one['worse_than']}"
    return f"{text}, left"
