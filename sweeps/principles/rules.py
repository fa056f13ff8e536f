"""Rules for which principle a setting touches, with the principle's advice: a table over settings and facts alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from sweeps.principles.facts import Case

RELIES, AGAINST, NO_EFFECT = "relies on", "contradicts", "has no effect, by"


@dataclass(frozen=True)
class Touch:
    """A setting that a principle is about, with advice in a sentence and the settings to use instead."""

    principle: str
    relation: str
    setting: str
    advice: str
    instead: Mapping[str, Any] = field(default_factory=dict)  # settings to measure against


class AdviceRule(NamedTuple):
    """A principle's advice on a setting, and when it applies.

    `advice` is a format string filled from the case, its facts and its configuration.
    """

    principle: str
    relation: str
    setting: str
    applies: Callable[[Case], object]
    advice: str
    instead: Callable[[Case], Mapping[str, Any]] | Mapping[str, Any] = MappingProxyType({})

    def touch(self, case: Case) -> Touch:
        """Return the rule's advice on a case to which the rule applies."""
        advice = self.advice.format(case=case, facts=case.facts, config=case.config)
        instead = self.instead(case) if callable(self.instead) else self.instead
        return Touch(self.principle, self.relation, self.setting, advice, dict(instead))


def touches(case: Case) -> list[Touch]:
    """Return the touches of all rules that apply to a case."""
    return [rule.touch(case) for rule in RULES if rule.applies(case)]


# --- the rules ------------------------------------------------------------------------------------


SCORERS, AFFINITY = "routing_scorers", "routing_scorers.prefix-affinity"
FREE_KV, BY_CLASS = "routing_scorers.kv-utilization", "routing_scorers.slo-priority"
IN_ORDER = {"scheduler": "fcfs", "priority_policy": "constant"}
SHARED = (
    "Affinity to load is {case.ratio:.3g}; with {facts.least_share:.0%} to {facts.most_share:.0%} of a prompt "
    "shared "
)
OLD = (
    "Utilisation is up to {case.signal_age_ms:g} ms old; alone it makes instances fill in turns, beside other scorers "
    "it hardly shows."
)
LOAD = "With {facts.prefill_load:.2f} times the prefill work that the instances can do, "
MANY_PARAMETERS, FEW_CALLS = 10, 50
LONG_STARVATION_S = 5.0

RULES = (
    # routing
    AdviceRule(
        "RP-1", AGAINST, "routing_scorers.cost-benefit", lambda case: "cost-benefit" in case.weights,
        "It nets saved prefill against waiting before the router sees either; weigh prefix-affinity and queue-depth "
        "instead.", {SCORERS: "prefix-affinity:3,queue-depth:2"},
    ),
    AdviceRule(
        "RP-4", AGAINST, "routing_policy", lambda case: case.config.routing_policy == "adaptive-weighted",
        "Weights by class send one prefix to different instances; one set of weights keeps it together.",
        {"routing_policy": "weighted", SCORERS: ""},
    ),
    AdviceRule(
        "S2", AGAINST, FREE_KV, lambda case: "kv-utilization" in case.weights and case.is_plentiful,
        "Requests need at most about {facts.blocks_needed:.0f} of {case.fewest_blocks} blocks per instance, so the "
        "scorer differs by next to nothing; leave it out.", lambda case: case.without_scorer("kv-utilization"),
    ),
    AdviceRule(
        "RP-6", AGAINST, FREE_KV, lambda case: "kv-utilization" in case.weights and not case.is_plentiful,
        "With about {facts.blocks_needed:.0f} of {case.fewest_blocks} blocks needed per instance it pulls requests "
        "away from their prefixes; but where blocks run out altogether it is what keeps runs from livelock, so measure "
        "both.",
        lambda case: case.without_scorer("kv-utilization"),
    ),
    # thresholds of affinity ÷ load are the workload's, not 1.33
    AdviceRule(
        "RP-10", AGAINST, AFFINITY, lambda case: case.ratio >= case.facts.sure_ratio,
        SHARED + "every request stays with the warm instance however long its queue is; keep the ratio below "
        "{facts.sure_ratio:.3g}.", lambda case: case.with_ratio(0.95 / case.facts.most_share),
    ),
    AdviceRule(
        "RP-10", NO_EFFECT, AFFINITY, lambda case: case.ratio < case.facts.least_ratio,
        SHARED + "affinity never outvotes the load extremes below {facts.least_ratio:.3g}; more or less of it changes "
        "little.", lambda case: case.without_scorer("prefix-affinity"),
    ),
    AdviceRule(
        "RP-10", RELIES, AFFINITY, lambda case: case.facts.least_ratio <= case.ratio < case.facts.sure_ratio,
        SHARED + "it lies between {facts.least_ratio:.3g} and {facts.sure_ratio:.3g}, where some requests stick to a "
        "loaded instance; the longest prompts decide how many.",
    ),
    AdviceRule(
        "F2", AGAINST, AFFINITY, lambda case: case.affinity and not case.load_weight,
        "No scorer looks at the load, so the first instance that is warm gets every request with that prefix; add "
        "queue-depth.", lambda case: {SCORERS: f"prefix-affinity:{case.affinity!r},queue-depth:{case.affinity!r}"},
    ),
    AdviceRule(
        "S1", AGAINST, BY_CLASS,
        lambda case: "slo-priority" in case.weights and case.facts.has_equal_laws and len(case.facts.classes) > 1,
        "All classes have the same lengths and prefix, so it says what queue-depth says, only weaker for some; the "
        "order inside the instance is what tells classes apart.", lambda case: case.without_scorer("slo-priority"),
    ),
    AdviceRule(
        "RP-12", NO_EFFECT, "snapshot_refresh_interval",
        lambda case: case.signal_age_ms and "kv-utilization" not in case.weights,
        "Only KV fields get stale, and no scorer reads them.", {"snapshot_refresh_interval": 0},
    ),
    AdviceRule(
        "F6", AGAINST, "snapshot_refresh_interval",
        lambda case: case.signal_age_ms > 5 and set(case.weights) == {"kv-utilization"},
        OLD, {"snapshot_refresh_interval": 0},
    ),
    AdviceRule(
        "F6", RELIES, "snapshot_refresh_interval",
        lambda case: case.signal_age_ms > 5 and set(case.weights) > {"kv-utilization"},
        OLD, {"snapshot_refresh_interval": 0},
    ),
    AdviceRule(
        "F8", AGAINST, "routing_policy",
        lambda case: case.config.routing_policy == "least-loaded" and case.facts.prefill_load < 0.1,
        "At this load instances are often equally idle, and then the first one is taken.",
        {"routing_policy": "round-robin"},
    ),
    AdviceRule(
        "S13", RELIES, AFFINITY,
        lambda case: case.affinity and case.facts.num_prefixes >= max(len(case.facts.classes), 2),
        "The classes have prefixes of their own; if instances are to be divided among them, check that they are.",
    ),
    AdviceRule(
        "F3", RELIES, AFFINITY,
        lambda case: case.facts.has_conversations and case.affinity and case.load_weight,
        "Sessions stay where they began and spread by the load at their beginning; affinity may weigh more than usual.",
    ),
    # admission
    AdviceRule(
        "C-19", AGAINST, "scheduler", lambda case: case.has_gate and case.has_priorities,
        "Where the gate bounds the queues, strict priority only moves the tail to the other classes; try the gate with "
        "fcfs.", IN_ORDER,
    ),
    AdviceRule(
        "RP-9", AGAINST, "admission_policy", lambda case: case.is_ungated_overload,
        LOAD + "queues only grow; a gate on the sheddable classes makes them shorter.",
        {"admission_policy": "slo-gated", "slo_gated_threshold": 20.0},
    ),
    AdviceRule(
        "S6", RELIES, "scheduler", lambda case: case.is_ungated_overload and case.has_priorities,
        LOAD + "what critical requests gain the others lose; judge every class.", IN_ORDER,
    ),
    AdviceRule(
        "S8", AGAINST, "slo_gated_threshold",
        lambda case: (
            case.config.admission_policy == "slo-gated" and case.config.variant == "scheduling"
            and case.config.slo_gated_threshold >= 50
        ),
        "At {config.slo_gated_threshold:g} requests per instance the gate opens too late for critical requests; about "
        "20 lowers their floor.", {"slo_gated_threshold": 20.0},
    ),
    AdviceRule(
        "RP-11", AGAINST, "objectives", lambda case: case.sheds_unseen,
        "Latency counts only requests that were let in, so shedding more always looks better; add goodput_rps, or "
        "bound reject_rate.",
    ),
    # inside an instance
    AdviceRule(
        "RP-5", NO_EFFECT, "scheduler", lambda case: case.has_priorities and case.facts.prefill_load < 0.3,
        "At {facts.prefill_load:.0%} prefill load wait queues are empty, so there is nothing to order.", IN_ORDER,
    ),
    AdviceRule(
        "C-20", NO_EFFECT, "slo_priority_bridge", lambda case: case.config.slo_priority_bridge,
        "The instance recomputes all priorities before it orders its queue, so what the router stamps is never read.",
        {"slo_priority_bridge": False},
    ),
    AdviceRule(
        "S7", NO_EFFECT, "priority_policy",
        lambda case: case.config.priority_policy == "load-adaptive" and case.is_overloaded,
        "Under overload queues stay above the upper threshold and the gap stays fully open; slo-tiered gives the same.",
        {"priority_policy": "slo-tiered"},
    ),
    AdviceRule(
        "S5", AGAINST, "slo_age_weight", lambda case: case.overtaking_s > LONG_STARVATION_S,
        "A sheddable request passes a new critical one after {case.overtaking_s:.3g} s; raise the weight or close the "
        "gap.",
    ),
    AdviceRule(
        "S5", RELIES, "slo_age_weight", lambda case: case.overtaking_s <= LONG_STARVATION_S,
        "A sheddable request passes a new critical one after {case.overtaking_s:.3g} s; say so beside the results.",
    ),
    AdviceRule(
        "S9", AGAINST, "long_prefill_token_threshold",
        lambda case: case.critical_chunk and "critical" in case.facts.classes,
        "Critical prompts are cut at {case.critical_chunk} tokens and pay a step for each piece; leave them whole.",
        lambda case: {
            "slo_prefill": True, "slo_prefill_critical": 0,
            "slo_prefill_sheddable": case.config.long_prefill_token_threshold,
        },
    ),
    AdviceRule(
        "S16", AGAINST, "slo_prefill", lambda case: case.keeps_critical_whole and not case.config.slo_prefill_sheddable,
        "Standard requests are still cut at {config.long_prefill_token_threshold} tokens; set "
        "long_prefill_token_threshold to 0 if no prompt is to be cut.", {"long_prefill_token_threshold": 0},
    ),
    AdviceRule(
        "S10", RELIES, "slo_prefill", lambda case: case.keeps_critical_whole and case.config.slo_prefill_sheddable,
        "Chunk sizes by class cost no throughput.",
    ),
    AdviceRule(
        "S15", NO_EFFECT, "slo_preemption", lambda case: case.config.slo_preemption and case.is_plentiful,
        "Nothing is evicted while blocks are plentiful.", {"slo_preemption": False},
    ),
    AdviceRule(
        "S15", AGAINST, "slo_preemption", lambda case: case.config.slo_preemption and not case.is_plentiful,
        "Evicting the least urgent request computes it again, which costs sheddable requests more than it saves.",
        {"slo_preemption": False},
    ),
    AdviceRule(
        "S12", RELIES, "total_kv_blocks", lambda case: case.fewest_blocks < 3000 and not case.is_plentiful,
        "{case.fewest_blocks} blocks are in the range where part of the gain is lost.", {"total_kv_blocks": 132139},
    ),
    # how a strategy was found
    AdviceRule(
        "S3", AGAINST, "parameters",
        lambda case: case.num_parameters >= MANY_PARAMETERS and case.num_calls <= FEW_CALLS,
        "{case.num_parameters} parameters in {case.num_calls} calls: repeat the search with other random "
        "states before trusting its best point.",
    ),
    AdviceRule(
        "S4", RELIES, "mechanism", lambda case: case.num_mechanisms >= 2,
        "{case.num_mechanisms} mechanisms at once: run each alone and all pairs before crediting any.",
    ),
)  # fmt: skip
