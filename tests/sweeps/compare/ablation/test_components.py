"""Differing settings by mechanism, and mixtures of two configurations."""

from __future__ import annotations

from collections import Counter

import pytest

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.errors import ConfigError
from sweeps.compare.ablation.components import (
    GROUPS,
    components_of,
    config_at,
    differing,
    mixture,
    values_of,
)
from sweeps.strategies.arms import arm_of

PLAIN = arm_of("iter00_baseline").config
SIMPLE = arm_of("iter05_simplified").config


def test_every_setting_has_one_group() -> None:
    counts = Counter(setting for settings in GROUPS.values() for setting in settings)
    assert set(counts) == set(FIELDS) and set(counts.values()) == {1}


def test_iteration_5_differs_in_three_mechanisms() -> None:
    found = {one.name: set(one.settings) for one in components_of(PLAIN, SIMPLE)}
    assert found == {
        "priority": {"scheduler", "priority_policy"},
        "priority bridge": {"slo_priority_bridge"},
        "chunks by class": {"slo_prefill", "slo_prefill_critical"},
    }


def test_mixtures_have_their_settings_alone() -> None:
    components = components_of(PLAIN, SIMPLE)
    assert config_at(PLAIN, SIMPLE, components, 0) == PLAIN
    assert config_at(PLAIN, SIMPLE, components, 7) == SIMPLE
    middle = config_at(PLAIN, SIMPLE, components, 4)
    assert middle.slo_prefill and middle.scheduler == "fcfs" and not middle.slo_priority_bridge
    everything = mixture(PLAIN, SIMPLE, differing(PLAIN, SIMPLE))
    assert everything == SIMPLE


def test_scorers_are_settings_of_their_own() -> None:
    slo = arm_of("iter01_priority_cascade").config
    names = [name for name in differing(PLAIN, slo) if name.startswith("routing")]
    assert names == ["routing_scorers.slo-priority", "routing_scorers.kv-utilization"]
    added = mixture(PLAIN, slo, ["routing_scorers.slo-priority"])
    assert dict(added.scorers()) == {
        "prefix-affinity": 3, "slo-priority": 2, "queue-depth": 2, "kv-utilization": 2,
    }  # fmt: skip
    dropped = mixture(PLAIN, slo, ["routing_scorers.kv-utilization"])
    assert dict(dropped.scorers()) == {"prefix-affinity": 3, "queue-depth": 2}
    assert mixture(PLAIN, slo, names).scorers() == slo.scorers()
    assert values_of(PLAIN, names) == {names[0]: None, names[1]: 2.0}


def test_the_same_scorers_in_other_words_do_not_differ() -> None:
    one = PLAIN.replace(routing_scorers="")
    assert differing(one, PLAIN) == ()
    turned = PLAIN.replace(routing_scorers="queue-depth:2,prefix-affinity:3,kv-utilization:2")
    assert differing(PLAIN, turned) == ("routing_scorers",)  # sums end in other digits


def test_a_mixture_without_scorers_cannot_be() -> None:
    one = ClusterConfig(routing_policy="weighted", routing_scorers="queue-depth:1")
    other = one.replace(routing_scorers="load-balance:1")
    with pytest.raises(ConfigError, match="no scorer is left"):
        mixture(one, other, ["routing_scorers.queue-depth"])


def test_own_components() -> None:
    text = "priority=priority,slo_priority_bridge; critical=slo_prefill_critical"
    found = {one.name: one.settings for one in components_of(PLAIN, SIMPLE, text)}
    assert list(found) == ["priority", "critical", "chunks by class"]
    assert set(found["priority"]) == {"scheduler", "priority_policy", "slo_priority_bridge"}
    assert found["chunks by class"] == ("slo_prefill",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("priority", "is not NAME=SETTING"),
        ("a=scheduler;a=priority_policy", "given twice"),
        ("a=scheduler;b=priority", "scheduler is in two places"),
        ("a=num_instances", "do not differ in 'num_instances'"),
        ("a=admission", "do not differ in 'admission'"),
        ("a=schedular", "did you mean 'scheduler'"),
        ("priority=slo_priority_bridge", "usual group of"),
    ],
)
def test_refusals(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        components_of(PLAIN, SIMPLE, text)


def test_equal_arms_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to take apart"):
        components_of(PLAIN, PLAIN)


def test_numbers_of_policies_go_one_by_one_into_the_groups_of_their_policies() -> None:
    thin = arm_of("iter23_thin_tiers@begun").config
    groups = {one.name: set(one.settings) for one in components_of(PLAIN, thin)}
    assert {"priority.busy_depth", "priority.calm_share"} < groups["priority numbers"]
    assert {"scorer.class_backlog.lower_share", "routing_scorers.class_backlog"} < groups["routing"]
    assert groups["priority"] == {"scheduler", "priority_policy"}
    assert mixture(PLAIN, thin, differing(PLAIN, thin)) == thin


def test_a_mixture_has_the_numbers_of_its_own_policies_alone() -> None:
    thin = arm_of("iter23_thin_tiers@begun").config
    plain = mixture(PLAIN, thin, ["priority.busy_depth"])
    assert plain == PLAIN  # nobody has the number
    both = mixture(PLAIN, thin, ["priority_policy", "priority.busy_depth"])
    assert dict(both.policy_numbers) == {"priority.busy_depth": 10.0}
    assert values_of(both, ["priority.busy_depth", "priority.stay"]) == {
        "priority.busy_depth": 10.0, "priority.stay": None,
    }  # fmt: skip
