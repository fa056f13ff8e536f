"""Rules on routing and admission: which principle a setting touches, from the settings alone."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from blis_jax.metrics.metric import split_name
from sweeps.principles.instance_rules import (
    AGAINST,
    NO_EFFECT,
    RELIES,
    Case,
    Rule,
    Touch,
    fewest_blocks,
)

LATENCIES = ("ttft", "e2e", "scheduling_delay")


def without_scorer(case: Case, name: str) -> dict[str, Any]:
    """Return settings that leave one scorer out; none if it is the only one."""
    rest = [f"{other}:{weight!r}" for other, weight in case.config.scorers() if other != name]
    return {"routing_scorers": ",".join(rest)} if rest else {}


# --- routing --------------------------------------------------------------------------------------


def netted_scores(case: Case) -> Iterator[Touch]:
    """Advise by RP-1: a scorer that nets cost against benefit hides both from the router."""
    if "cost-benefit" in case.weights:
        yield Touch(
            "RP-1",
            AGAINST,
            "routing_scorers.cost-benefit",
            "It nets saved prefill against waiting before the router sees either; weigh "
            "prefix-affinity and queue-depth instead.",
            {"routing_scorers": "prefix-affinity:3,queue-depth:2"},
        )


def weights_by_class(case: Case) -> Iterator[Touch]:
    """Advise by RP-4: weights by class send one prefix to different instances."""
    if case.config.routing_policy == "adaptive-weighted":
        yield Touch(
            "RP-4",
            AGAINST,
            "routing_policy",
            "Weights by class send one prefix to different instances; one set of weights keeps it "
            "together.",
            {"routing_policy": "weighted", "routing_scorers": ""},
        )


def free_memory(case: Case) -> Iterator[Touch]:
    """Advise by S2 where blocks are plentiful, by RP-6 where they are not, on the scorer of free KV blocks."""
    if "kv-utilization" not in case.weights:
        return
    setting, instead = "routing_scorers.kv-utilization", without_scorer(case, "kv-utilization")
    if case.facts.is_plentiful(case.config):
        yield Touch(
            "S2",
            AGAINST,
            setting,
            f"Requests need at most about {case.facts.blocks_needed:.0f} of {fewest_blocks(case.config)} "
            "blocks per instance, so the scorer differs by next to nothing; leave it out.",
            instead,
        )
    else:
        yield Touch(
            "RP-6",
            AGAINST,
            setting,
            f"With about {case.facts.blocks_needed:.0f} of {fewest_blocks(case.config)} blocks "
            "needed per instance it pulls requests away from their prefixes; but where blocks run "
            "out altogether it is what keeps runs from livelock, so measure both.",
            instead,
        )


def affinity_ratio(case: Case) -> Iterator[Touch]:
    """Advise by RP-10: thresholds of affinity ÷ load are the workload's, not 1.33."""
    facts, load = case.facts, case.load_weight
    if not case.affinity or not load or math.isnan(facts.most_share):
        return
    ratio = case.affinity / load
    words = (
        f"Affinity to load is {ratio:.3g}; with {facts.least_share:.0%} to {facts.most_share:.0%} "
    )
    words += "of a prompt shared "
    if ratio >= 1 / facts.least_share:
        yield Touch(
            "RP-10",
            AGAINST,
            "routing_scorers.prefix-affinity",
            f"{words}every request stays with the warm instance however long its queue is; keep the "
            f"ratio below {1 / facts.least_share:.3g}.",
            {"routing_scorers": _with_ratio(case, 0.95 / facts.most_share)},
        )
    elif ratio < 1 / facts.most_share:
        yield Touch(
            "RP-10",
            NO_EFFECT,
            "routing_scorers.prefix-affinity",
            f"{words}affinity never outvotes the load extremes below {1 / facts.most_share:.3g}; more "
            "or less of it changes little.",
            without_scorer(case, "prefix-affinity"),
        )
    else:
        yield Touch(
            "RP-10",
            RELIES,
            "routing_scorers.prefix-affinity",
            f"{words}it lies between {1 / facts.most_share:.3g} and {1 / facts.least_share:.3g}, where "
            "some requests stick to a loaded instance; the longest prompts decide how many.",
        )


def _with_ratio(case: Case, ratio: float) -> str:
    weight = ratio * case.load_weight
    parts = [
        f"{name}:{weight if name == 'prefix-affinity' else value!r}"
        for name, value in case.config.scorers()
    ]
    return ",".join(parts)


def affinity_alone(case: Case) -> Iterator[Touch]:
    """Advise by F2: affinity without a scorer of load sends a prefix to one instance."""
    if case.affinity and not case.load_weight:
        yield Touch(
            "F2",
            AGAINST,
            "routing_scorers.prefix-affinity",
            "No scorer looks at the load, so the first instance that is warm gets every request with "
            "that prefix; add queue-depth.",
            {"routing_scorers": f"prefix-affinity:{case.affinity!r},queue-depth:{case.affinity!r}"},
        )


def class_scorer(case: Case) -> Iterator[Touch]:
    """Advise by S1: routing does not tell equal requests apart."""
    if "slo-priority" in case.weights and case.facts.has_equal_laws and len(case.facts.classes) > 1:
        yield Touch(
            "S1",
            AGAINST,
            "routing_scorers.slo-priority",
            "All classes have the same lengths and prefix, so it says what queue-depth says, only "
            "weaker for some; the order inside the instance is what tells classes apart.",
            without_scorer(case, "slo-priority"),
        )


def stale_snapshots(case: Case) -> Iterator[Touch]:
    """Advise by RP-12 without, by F6 with a scorer that reads what gets stale."""
    interval = case.config.snapshot_refresh_interval
    if not interval:
        return
    if "kv-utilization" not in case.weights:
        yield Touch(
            "RP-12",
            NO_EFFECT,
            "snapshot_refresh_interval",
            "Only KV fields get stale, and no scorer reads them.",
            {"snapshot_refresh_interval": 0},
        )
    elif interval > 5000:
        yield Touch(
            "F6",
            AGAINST if set(case.weights) == {"kv-utilization"} else RELIES,
            "snapshot_refresh_interval",
            f"Utilisation is up to {interval / 1000:g} ms old; alone it makes instances fill in turns, "
            "beside other scorers it hardly shows.",
            {"snapshot_refresh_interval": 0},
        )


def ties_to_the_first(case: Case) -> Iterator[Touch]:
    """Advise by F8: ties between idle instances go to the first one."""
    if case.config.routing_policy == "least-loaded" and case.facts.prefill_load < 0.1:
        yield Touch(
            "F8",
            AGAINST,
            "routing_policy",
            "At this load instances are often equally idle, and then the first one is taken.",
            {"routing_policy": "round-robin"},
        )


def own_prefixes(case: Case) -> Iterator[Touch]:
    """Advise by S13: classes with prefixes of their own may divide the instances among them."""
    if case.affinity and case.facts.num_prefixes >= max(len(case.facts.classes), 2):
        yield Touch(
            "S13",
            RELIES,
            "routing_scorers.prefix-affinity",
            "The classes have prefixes of their own; if instances are to be divided among them, check "
            "that they are.",
        )


def sticky_sessions(case: Case) -> Iterator[Touch]:
    """Advise by F3: sessions stay where they began."""
    if case.facts.has_conversations and case.affinity and case.load_weight:
        yield Touch(
            "F3",
            RELIES,
            "routing_scorers.prefix-affinity",
            "Sessions stay where they began and spread by the load at their beginning; affinity may "
            "weigh more than usual.",
        )


# --- admission ------------------------------------------------------------------------------------


def gate_and_priority(case: Case) -> Iterator[Touch]:
    """Advise by C-19: where a gate bounds the queues, strict priority only moves the tail."""
    if case.has_gate and case.has_priorities:
        yield Touch(
            "C-19",
            AGAINST,
            "scheduler",
            "Where the gate bounds the queues, strict priority only moves the tail to the other "
            "classes; try the gate with fcfs.",
            {"scheduler": "fcfs", "priority_policy": "constant"},
        )


def overload_without_gate(case: Case) -> Iterator[Touch]:
    """Advise by RP-9 and S6: under overload queues only grow without a gate, and priorities take from the others."""
    if not case.is_overloaded or case.has_gate or case.config.admission_policy != "always-admit":
        return
    load = f"{case.facts.prefill_load:.2f} times the prefill work that the instances can do"
    yield Touch(
        "RP-9",
        AGAINST,
        "admission_policy",
        f"With {load}, queues only grow; a gate on the sheddable classes makes them shorter.",
        {"admission_policy": "slo-gated", "slo_gated_threshold": 20.0},
    )
    if case.has_priorities:
        yield Touch(
            "S6",
            RELIES,
            "scheduler",
            f"With {load}, what critical requests gain the others lose; judge every class.",
            {"scheduler": "fcfs", "priority_policy": "constant"},
        )


def high_gate(case: Case) -> Iterator[Touch]:
    """Advise by S8: a high threshold opens the gate too late for critical requests."""
    is_own = case.config.admission_policy == "slo-gated" and case.config.variant == "scheduling"
    if is_own and case.config.slo_gated_threshold >= 50:
        yield Touch(
            "S8",
            AGAINST,
            "slo_gated_threshold",
            f"At {case.config.slo_gated_threshold:g} requests per instance the gate opens too late for "
            "critical requests; about 20 lowers their floor.",
            {"slo_gated_threshold": 20.0},
        )


def shedding_by_latency(case: Case) -> Iterator[Touch]:
    """Advise by RP-11: latency alone counts only requests that were let in."""
    strategy = case.strategy
    sheds = case.has_gate or case.config.admission_policy == "token-bucket"
    if strategy is None or not sheds:
        return
    metrics = [split_name(objective.metric)[0] for objective in strategy.objectives]
    bounded = [split_name(constraint.metric)[0] for constraint in strategy.constraints]
    counts = ("goodput_rps", "attainment", "slo_miss_rate", "reject_rate", "num_rejected")
    is_latency = any(name.startswith(LATENCIES) for name in metrics)
    if is_latency and not any(name in counts for name in (*metrics, *bounded)):
        yield Touch(
            "RP-11",
            AGAINST,
            "objectives",
            "Latency counts only requests that were let in, so shedding more always looks better; "
            "add goodput_rps, or bound reject_rate.",
        )


RULES: tuple[Rule, ...] = (
    netted_scores,
    weights_by_class,
    free_memory,
    affinity_ratio,
    affinity_alone,
    class_scorer,
    stale_snapshots,
    ties_to_the_first,
    own_prefixes,
    sticky_sessions,
    gate_and_priority,
    overload_without_gate,
    high_gate,
    shedding_by_latency,
)
