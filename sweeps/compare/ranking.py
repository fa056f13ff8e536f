"""Which arm is best in one metric, by how much, and how surely: every two arms against each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.metrics.metric import LOWER
from blis_jax.metrics.scalars import lookup
from blis_jax.reports.words import metric_name, number
from blis_jax.statistics.paired import BETTER, WORSE
from sweeps.compare.report import quantity

if TYPE_CHECKING:
    from blis_jax.statistics.paired import Difference
    from sweeps.compare.document import Compared, ComparedSetting
    from sweeps.compare.judge import Judge

USUAL = ("pooled_ttft_p99_ms", "ttft_p99_ms")  # the first that is compared


def ranking(setting: ComparedSetting, compared: Sequence[Compared], judge: Judge) -> dict[str, Any]:
    """Order the arms from the best to the worst; differences between any two are judged together."""
    name = next((one for one in USUAL if one in setting.metrics), setting.metrics[0])
    metric, slo_class = lookup(name)
    places = list(combinations(range(len(compared)), 2))
    differences = judge.differences(
        [(compared[one].runs, compared[other].runs, name) for one, other in places]
    )
    values = np.array([judge.interval(one.runs, name).mean for one in compared])
    sign = 1.0 if metric.direction == LOWER else -1.0
    order = [at for at in np.argsort(sign * values, kind="stable") if np.isfinite(values[at])]
    by_pair = dict(zip(places, differences, strict=True))
    arms = [one.arm.name for one in compared]
    return {
        "metric": metric.name,
        "class": slo_class or "all",
        "better": metric.direction,
        "family_size": len(places),
        "order": [
            {
                "arm": arms[at],
                "value": float(values[at]),
                "against_reference": by_pair[0, int(at)].to_json() if at else None,
                "surely_ahead_of": [
                    arms[other] for other in order if _is_ahead(by_pair, int(at), int(other))
                ],
            }
            for at in order
        ],
    }


def _is_ahead(by_pair: Mapping[tuple[int, int], Difference], one: int, other: int) -> bool:
    """Whether one arm is surely better than another; a verdict is on the second of a pair."""
    if one == other:
        return False
    pair = (min(one, other), max(one, other))
    return by_pair[pair].verdict == (WORSE if one < other else BETTER)


def ranking_lines(document: Mapping[str, Any]) -> list[str]:
    """Write the ranking in words, the answer first."""
    ranking = document.get("ranking")
    if not ranking or len(ranking["order"]) < 2:
        return []
    reference = document["reference"]
    lines = [_answer(ranking, reference)]
    for rank, entry in enumerate(ranking["order"], start=1):
        difference = entry["against_reference"]
        words = (
            "the reference"
            if difference is None
            else f"{quantity(difference['simultaneous_percent'])} % against {reference}"
        )
        ahead = entry["surely_ahead_of"]
        sure = f"; surely better than {', '.join(ahead)}" if ahead else ""
        lines.append(
            f"{rank}. {entry['arm']}: {number(entry['value'])}{_unit(ranking)}, {words}{sure}"
        )
    scorers = {arm["settings"].get("routing_scorers") for arm in document["arms"]} - {None}
    is_weighted = any(
        arm["settings"].get("routing_policy") == "weighted" for arm in document["arms"]
    )
    if is_weighted and scorers:
        lines.append(f"weighted adds up the scores {', '.join(sorted(scorers))}.")
    pairs = ranking["family_size"]
    together = f"hold for its {pairs} pairs together" if pairs > 1 else "are of one figure"
    lines.append(
        f"Intervals of the ranking {together}; the tables judge more figures together, so theirs "
        "are wider."
    )
    return lines


def _answer(found: Mapping[str, Any], reference: str) -> str:
    """The best arm, by how much, and which others may be as good."""
    best, *others = found["order"]
    level = [one["arm"] for one in others if one["arm"] not in best["surely_ahead_of"]]
    figure = f"{metric_name(found['metric'])} of {found['class']} requests {number(best['value'])}"
    text = f"{figure}{_unit(found)}"
    if best["against_reference"] is not None:
        change = quantity(best["against_reference"]["simultaneous_percent"])
        text += f", {change} % against {reference}"
    else:
        change = quantity(others[0]["against_reference"]["simultaneous_percent"])
        text += f"; the next, {others[0]['arm']}, has {change} %"
    if not level:
        return f"{best['arm']} is best: {text}."
    others_words = "any other" if len(level) == len(others) else ", ".join(level)
    return f"{best['arm']} has the best figure: {text}. These requests cannot tell it from {others_words}."


def _unit(found: Mapping[str, Any]) -> str:
    return " ms" if found["metric"].endswith("_ms") else ""
