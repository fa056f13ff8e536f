"""Rules on what happens inside an instance, and on how a strategy was found."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sweeps.principles.rules.facts import (
    AGAINST,
    NO_EFFECT,
    RELIES,
    Case,
    Rule,
    Touch,
    fewest_blocks,
)

MANY_PARAMETERS, FEW_CALLS = 10, 50
LONG_STARVATION_S = 5.0


def moderate_load(case: Case) -> Iterator[Touch]:
    """Advise by RP-5: while wait queues are empty, their order has no effect."""
    if case.has_priorities and case.facts.prefill_load < 0.3:
        yield Touch(
            "RP-5",
            NO_EFFECT,
            "scheduler",
            f"At {case.facts.prefill_load:.0%} prefill load wait queues are empty, so there is nothing "
            "to order.",
            {"scheduler": "fcfs", "priority_policy": "constant"},
        )


def bridge(case: Case) -> Iterator[Touch]:
    """Advise by C-20: the instance does not read the priority that the router stamps."""
    if case.config.slo_priority_bridge:
        yield Touch(
            "C-20",
            NO_EFFECT,
            "slo_priority_bridge",
            "The instance recomputes all priorities before it orders its queue, so what the router "
            "stamps is never read.",
            {"slo_priority_bridge": False},
        )


def adaptive_gap(case: Case) -> Iterator[Touch]:
    """Advise by S7: under overload the adaptive gap stays open and slo-tiered gives the same."""
    if case.config.priority_policy == "load-adaptive" and case.is_overloaded:
        yield Touch(
            "S7",
            NO_EFFECT,
            "priority_policy",
            "Under overload queues stay above the upper threshold and the gap stays fully open; "
            "slo-tiered gives the same.",
            {"priority_policy": "slo-tiered"},
        )


def starvation(case: Case) -> Iterator[Touch]:
    """Advise by S5: after some time a sheddable request passes a new critical one."""
    config = case.config
    if not case.has_priorities or config.priority_policy == "slo-class":
        return
    gap = config.slo_base_critical - config.slo_base_sheddable
    weight = config.slo_age_weight
    seconds = gap / weight / 1e6 if weight else math.inf
    seconds += config.slo_threshold_sheddable / 1e6
    is_long = seconds > LONG_STARVATION_S
    yield Touch(
        "S5",
        AGAINST if is_long else RELIES,
        "slo_age_weight",
        f"A sheddable request passes a new critical one after {seconds:.3g} s; "
        + ("raise the weight or close the gap." if is_long else "say so beside the results."),
    )


def chunks(case: Case) -> Iterator[Touch]:
    """Advise by S9, S10 and S16: which prompts are cut into chunks, and what that costs."""
    config = case.config
    threshold = config.long_prefill_token_threshold
    is_whole = config.slo_prefill and config.slo_prefill_critical == 0
    if threshold and not is_whole and "critical" in case.facts.classes:
        yield Touch(
            "S9",
            AGAINST,
            "long_prefill_token_threshold",
            f"Critical prompts are cut at {config.slo_prefill_critical if config.slo_prefill else threshold} "
            "tokens and pay a step for each piece; leave them whole.",
            {"slo_prefill": True, "slo_prefill_critical": 0, "slo_prefill_sheddable": threshold},
        )
    if is_whole and threshold and config.slo_prefill_sheddable == 0:
        yield Touch(
            "S16",
            AGAINST,
            "slo_prefill",
            f"Standard requests are still cut at {threshold} tokens; set "
            "long_prefill_token_threshold to 0 if no prompt is to be cut.",
            {"long_prefill_token_threshold": 0},
        )
    elif is_whole and threshold:
        yield Touch("S10", RELIES, "slo_prefill", "Chunk sizes by class cost no throughput.")


def eviction_by_class(case: Case) -> Iterator[Touch]:
    """Advise by S15: evicting by class costs sheddable requests more than it saves."""
    if case.config.slo_preemption:
        none = case.facts.is_plentiful(case.config)
        yield Touch(
            "S15",
            NO_EFFECT if none else AGAINST,
            "slo_preemption",
            "Nothing is evicted while blocks are plentiful."
            if none
            else "Evicting the least urgent request computes it again, which costs sheddable requests "
            "more than it saves.",
            {"slo_preemption": False},
        )


def scarce_memory(case: Case) -> Iterator[Touch]:
    """Advise by S12: with few KV blocks a part of the gain is lost."""
    config = case.config
    fewest = fewest_blocks(config)
    if fewest < 3000 and not case.facts.is_plentiful(config):
        yield Touch(
            "S12",
            RELIES,
            "total_kv_blocks",
            f"{fewest} blocks are in the range where part of the gain is lost.",
            {"total_kv_blocks": 132139},
        )


def many_parameters(case: Case) -> Iterator[Touch]:
    """Advise by S3: many parameters in few calls need repeated searches."""
    strategy = case.strategy
    if strategy is None or len(strategy.parameters) < MANY_PARAMETERS:
        return
    if strategy.search.calls <= FEW_CALLS:
        yield Touch(
            "S3",
            AGAINST,
            "parameters",
            f"{len(strategy.parameters)} parameters in {strategy.search.calls} calls: repeat the search "
            "with other random states before trusting its best point.",
        )


def added_up(case: Case) -> Iterator[Touch]:
    """Advise by S4: mechanisms that act together must be run alone before any is credited."""
    parts = [
        case.has_priorities,
        case.has_gate,
        case.config.slo_prefill,
        case.config.slo_preemption,
    ]
    if sum(parts) >= 2:
        yield Touch(
            "S4",
            RELIES,
            "mechanism",
            f"{sum(parts)} mechanisms at once: run each alone and all pairs before crediting any.",
        )


RULES: tuple[Rule, ...] = (
    moderate_load,
    bridge,
    adaptive_gap,
    starvation,
    chunks,
    eviction_by_class,
    scarce_memory,
    many_parameters,
    added_up,
)
