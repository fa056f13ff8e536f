"""The best arm in one metric, its margin and confidence: every two arms compared with each other.

Arms in which every request has the same life share one rank, named after the first of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.metrics.metric import LOWER
from blis_jax.metrics.scalars import lookup
from blis_jax.policies.registry import ROUTING
from blis_jax.reports.answers import in_words
from blis_jax.reports.findings import Quantity, Row, Sentence, Table
from blis_jax.reports.study import LONGER_TRACE, too_short, words_of
from blis_jax.reports.words import joined, metric_name, number, table_title
from blis_jax.statistics.paired import BETTER, WORSE, Difference
from sweeps.compare.report import quantity
from sweeps.runs.measured import same_lives
from sweeps.strategies.arms import Arm
from sweeps.strategies.moved import PATHS, changed, known_as

if TYPE_CHECKING:
    from sweeps.compare.document import Compared
    from sweeps.compare.judge import Judge

Document = Mapping[str, Any]
MOST_NAMED = 4  # in the verdict, of those that may be as good


def one_of_each(compared: Sequence[Compared]) -> list[Compared]:
    """Return the arms without repeats: of arms in which all requests have the same lives, only the first."""
    return [
        arm
        for at, arm in enumerate(compared)
        if not any(same_lives(arm.runs, before.runs) for before in compared[:at])
    ]


def ranking(
    name: str,
    distinct: Sequence[Compared],
    judge: Judge,
    differences: Mapping[tuple[int, int, str], Difference],
) -> dict[str, Any]:
    """Rank the arms in a metric, the best first; `differences`, of every two arms, are a family of their own."""
    metric, slo_class = lookup(name)
    values = np.array([judge.interval(compared.runs, name).mean for compared in distinct])
    sign = 1.0 if metric.direction == LOWER else -1.0
    order = [int(at) for at in np.argsort(sign * values, kind="stable") if np.isfinite(values[at])]
    arms = [compared.arm.name for compared in distinct]

    def is_ahead(first: int, second: int) -> bool:
        """Return whether the arm `first` is surely better than `second`; verdicts describe the second arm of a pair."""
        if first < second:
            return differences[first, second, name].verdict == WORSE
        return first > second and differences[second, first, name].verdict == BETTER

    return {
        "metric": metric.name,
        "class": slo_class or "all",
        "better": metric.direction,
        "num_pairs": len(arms) * (len(arms) - 1) // 2,
        "order": [
            {
                "arm": arms[at],
                "value": float(values[at]),
                "against_reference": differences[0, at, name].to_json() if at else None,
                "surely_ahead_of": [arms[other] for other in order if is_ahead(at, other)],
            }
            for at in order
        ],
    }


# --- in words -------------------------------------------------------------------------------------


def shown_arms(document: Document) -> list[str]:
    """Return the arms that a report shows: the reference, then the others from best to worst; identical ones once."""
    names = [arm["name"] for arm in document["arms"]]
    if not document.get("ranking"):
        return names
    order = [entry["arm"] for entry in document["ranking"]["order"]]
    alike = {other for arm in document["arms"] for other in arm["same_as"]}
    failed = [name for name in names if name not in order and name not in alike]
    return list(dict.fromkeys([document["reference"], *order, *failed]))


def title(document: Document) -> str:
    """Return the question that a ranking answers, as a title; empty without a ranking."""
    if not document.get("ranking"):
        return ""
    metric = in_words(document["ranking"]["metric"])
    return f"Which of {len(document['arms'])} routers is best in {metric}?"


def question(document: Document) -> str:
    """Return the question and the workload on which it was asked; empty without a ranking."""
    if not document.get("ranking"):
        return ""
    source = "Trace" if document["trace"] else "Workload"
    runs = words_of(document).counted(len(document["seeds"]))
    return f"{title(document)} {source} {document['workload']}, {runs}."


def verdict(document: Document) -> Sentence | None:
    """Return a sentence: the best arm, its margin, and the arms that may be as good; None without two arms to rank."""
    ranking = document.get("ranking")
    if not ranking or len(ranking["order"]) < 2:
        return None
    best, *others = ranking["order"]
    level = [arm["arm"] for arm in others if arm["arm"] not in best["surely_ahead_of"]]
    figure = (
        f"{metric_name(ranking['metric'])} of {ranking['class']} requests {number(best['value'])}"
    )
    text = f"{figure}{_unit(ranking)}"
    if best["against_reference"] is not None:
        text += f", {_change(best)} against {document['reference']}"
    else:
        text += f"; the next, {others[0]['arm']}, has {_change(others[0])}"
    if not level:
        return Sentence.of(f"{best['arm']} is best: {text}.")
    if too_short(document["inference"]):
        return Sentence.of(f"{best['arm']} is best on this trace: {text}.")
    other_words = joined(level) if len(level) <= MOST_NAMED else f"{len(level)} of the others"
    other_words = "any other" if len(level) == len(others) else other_words
    return Sentence.of(
        f"{best['arm']} has the best figure: {text}. These requests cannot tell it from {other_words}."
    )


def next_step(document: Document) -> str:
    """Return a sentence on what to do next after a ranking; empty without a ranking."""
    order = document["ranking"]["order"] if document.get("ranking") else []
    if len(order) < 2:
        return ""
    if len(order[0]["surely_ahead_of"]) == len(order) - 1:
        pace = "--time-scale or blis-jax robustness show at which pace another is best"
        return f"{pace}; --report FILE.html draws all of it."
    if too_short(document["inference"]):
        return LONGER_TRACE
    more = (
        "a longer trace, or --trace-windows N, tells" if document["trace"] else "more --seeds tell"
    )
    return f"{more} more of those that are not told apart; blis-jax capacity says how many GPUs the best needs."


def sure(document: Document) -> Sentence | None:
    """Return a sentence on how sure a ranking is; None without a ranking, or where differences are exact."""
    ranking, inference = document.get("ranking"), document["inference"]
    if not ranking or inference.get("are_exact"):
        return None
    if why := too_short(inference):
        return Sentence.of(why)
    told = sum(len(arm["surely_ahead_of"]) for arm in ranking["order"])
    pairs = ranking["num_pairs"]
    level = f"{100 * inference['confidence']:g} % for "
    level += f"all {pairs} pairs of routers at once: " if pairs > 1 else "the one pair of routers: "
    return Sentence.of(
        level, Quantity.whole(told), " told apart, ", Quantity.whole(pairs - told), " not."
    )


def ranking_table(document: Document) -> Iterator[Table]:
    """Yield the table of the ranking, the best arm first, if there is a ranking."""
    ranking = document.get("ranking")
    if not ranking:
        return
    rows = []
    for rank, entry in enumerate(ranking["order"], start=1):
        change = entry["against_reference"]
        against = "the reference" if change is None else quantity(change["simultaneous_percent"])
        surely = "" if change is None else change["verdict"]
        beaten = len(entry["surely_ahead_of"])
        rows.append(
            Row(
                (
                    str(rank),
                    entry["arm"],
                    Quantity(entry["value"]),
                    against,
                    surely,
                    f"{beaten} of {len(ranking['order']) - 1}",
                )
            )
        )
    columns = (
        "",
        "router",
        table_title(ranking["metric"]),
        f"in % of {document['reference']}",
        "",
        "surely beats",
    )
    yield Table(columns, tuple(rows), name="ranking")


def ranking_lines(document: Document) -> list[str]:
    """Return lines on routers that fare exactly like another one, and on the scorers that `weighted` adds up."""
    if not document.get("ranking"):
        return []
    shown = shown_arms(document)
    alike = {arm["name"]: arm["same_as"] for arm in document["arms"] if arm["same_as"]}
    lines = [f"As {name}: {', '.join(alike[name])}." for name in shown if name in alike]
    settings = [arm["settings"] for arm in document["arms"]]
    scorers = {arm_settings.get("routing_scorers") for arm_settings in settings} - {None}
    if scorers and any(
        arm_settings.get("routing_policy") == "weighted" for arm_settings in settings
    ):
        lines.append(f"weighted adds up the scores {', '.join(sorted(scorers))}.")
    return lines


def _change(entry: Mapping[str, Any]) -> str:
    return f"{quantity(entry['against_reference']['simultaneous_percent'])} %"


def _unit(ranking: Mapping[str, Any]) -> str:
    return " ms" if ranking["metric"].endswith("_ms") else ""


# --- arms that differ in the router alone ---------------------------------------------------------

REFERENCE_ROUTER, ALL_ROUTERS = "round-robin", "all"
# sends everything to the fullest instance: a check, no router to choose
CONTROL_ROUTER = "always-busiest"


def router_arms(text: str, base: Arm) -> tuple[Arm, ...]:
    """Return the base arm once for each router of `all`, or of `NAME,NAME,…`; round-robin comes first if it is among
    them.

    Raises:
        ConfigError: fewer than two routers are named, or one twice.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names == [ALL_ROUTERS]:
        names = [name for name in ROUTING if name != CONTROL_ROUTER] + [*PATHS["routing"].values()]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--routers: {name} is given twice; give each router once")
    if len(names) < 2:
        raise ConfigError(
            f"--routers: {text!r} names fewer than two routers; give all, or two or more of "
            f"{', '.join(ROUTING)} or path/to/file.py:Name, with commas"
        )
    names.sort(key=lambda name: name != REFERENCE_ROUTER)
    return tuple(_with_router(base, name) for name in names)


def _with_router(base: Arm, name: str) -> Arm:
    try:
        config = changed(base.config, {"routing_policy": name})
    except ConfigError as error:
        others = f"; or of {', '.join(PATHS['routing'])}" * ("is not known" in str(error))
        raise ConfigError(f"--routers: {error}{others}") from None
    return dataclasses.replace(base, name=known_as(name).rpartition(":")[2], config=config)
