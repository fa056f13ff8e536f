"""Every setting is changed once: what Map A says becomes of it is what the files of the treatment show."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import pytest

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.offload_tiers import KvOffloadConfig
from blis_jax.cluster.speculation import SpeculativeConfig
from blis_jax.core.kinds import KINDS
from blis_jax.core.types import ROLES
from blis_jax.policies import registry
from sweeps.promote.evidence.tracks import TrackMaker
from sweeps.promote.llmd.arms import REPORT, config_files
from sweeps.promote.maps import setting_row
from sweeps.promote.promotion import NotMappedError, Promotion
from sweeps.strategies.arms import Arm, arm_of
from sweeps.strategies.moved import PATHS
from tests.support.recorded.reference_data import REPO_ROOT
from tests.sweeps.promote.promotions import IMAGE, TARGET, plugins, promotion

# another value of each setting that is no number, and of numbers where one more would be another thing
OTHER: dict[str, Any] = {
    "admission_policy": "slo-gated",
    "routing_policy": "least-loaded",
    "routing_scorers": "queue-depth:1,kv-utilization:3",
    "routing_picker": "weighted-random",
    "priority_policy": "slo-tiered",
    "scheduler": "sjf",
    "cluster_policy": "autoscaler",
    "hand_over_policy": "pools",
    "event_source": f"{REPO_ROOT}/examples/policies/fault.py:slow_instance",
    "victim_policy": PATHS["victim"]["least-worth"],
    "offload_policy": PATHS["offload"]["content-worth"],
    "draft_policy": f"{REPO_ROOT}/examples/drafts/best_rate.py:best_rate",
    "decode_routing_policy": "least-loaded",
    "decode_routing_scorers": "queue-depth:1",
    "decode_routing_picker": "weighted-random",
    "prefill_routing_scorers": "queue-depth:1",
    "saturation_detector": "concurrency",
    "dispatch_order": "slo-deadline",
    "fairness_policy": "round-robin",
    "model": "microsoft/phi-4",
    "hardware": "A100-80",
    "tp": 4,
    "instances": ({"count": 2, "role": ROLES[1]}, {"count": 2, "role": ROLES[2]}),
    "policy_numbers": (("admission.probability", 0.25),),
    "usage_limit_threshold": 0.5,
    "gpu_memory_utilization": 0.8,
    "max_num_scheduled_tokens": 1024,
    "snapshot_refresh_interval": 100_000,
    "load_refresh_interval": 100_000,
    "slo_age_weight": 2e-5,
    "kv_offload_config": KvOffloadConfig(cpu_bytes_to_use=2**30),
    "speculative_config": SpeculativeConfig("ngram", 2, (("", (0.5, 0.5)),)),
    "slo_targets": "critical=70",
    "mamba_cache_mode": "align",
    "slo_threshold_standard": 20_000,
    "slo_threshold_sheddable": 20_000,
}  # fmt: skip
ORDER = {"scheduler": "priority-fcfs", "priority_policy": "slo-tiered"}
QUEUE = {"flow_control": True}
POOLS = {
    "hand_over_policy": "pools",
    "kv_cpu_blocks": 0,
    "instances": ({"count": 2, "role": ROLES[1]}, {"count": 2, "role": ROLES[2]}),
}
# what must be set for a setting to be in effect; where a policy has it, that policy
CONTEXTS: dict[str, dict[str, Any]] = {
    "priority_policy": {"scheduler": "priority-fcfs"},
    "policy_numbers": {"admission_policy": PATHS["admission"]["class-gated"]},
    "queue_depth_threshold": QUEUE | {"saturation_detector": "utilization"},
    "kv_cache_util_threshold": QUEUE | {"saturation_detector": "utilization"},
    "max_concurrency": QUEUE | {"saturation_detector": "concurrency"},
    "slo_targets": QUEUE | {"dispatch_order": "slo-deadline"},
    **dict.fromkeys(
        (
            "saturation_detector", "usage_limit_threshold", "dispatch_order", "fairness_policy",
            "max_gateway_queue_depth", "per_band_capacity", "request_ttl", "queue_shedding",
            "dispatch_tick_interval",
        ),
        QUEUE,
    ),
    **{name: POOLS for name in FIELDS if name.startswith("pools_")},
}  # fmt: skip


def with_settings(settings: dict[str, Any]) -> ClusterConfig:
    """A configuration with other values, past what the simulator itself would refuse of them."""
    try:
        return usual().replace(**settings)
    except ValueError:
        changed = copy.copy(usual())
        for name, value in settings.items():
            object.__setattr__(changed, name, value)
        return changed


def context_of(name: str) -> dict[str, Any]:
    """The settings under which one is in effect: those of the table, or the policy whose number it is."""
    owner = registry.settings().get(name)
    if name in CONTEXTS or owner is None:
        return CONTEXTS.get(name, {})
    policy = owner.policies[0]
    if owner.kind == "scorer":
        return {"routing_scorers": f"{policy}:1"}
    return (ORDER if owner.kind == "priority" else {}) | {KINDS[owner.kind].setting: policy}


def other(name: str, value: Any) -> Any:
    """Another value of a setting."""
    if name in OTHER:
        return OTHER[name]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        owner = registry.settings().get(name)
        high = math.inf if owner is None else owner.number.high
        return value + 3 if math.isinf(high) else high if value != high else high / 2
    return "another"


@functools.cache
def usual() -> ClusterConfig:
    plain = {"scheduler": "fcfs", "priority_policy": "constant"}
    return promotion("iter13_class_lead@found").arm.config.replace(**plain)


def treatment(config: ClusterConfig) -> tuple[dict[str, str], str]:
    """The treatment's files with what clients send, and the report."""
    given = Promotion("one", Arm("one", config, None), arm_of("iter00_baseline"), TARGET, IMAGE)
    files = config_files(given, plugins(given))
    found = {path: text for path, text in files.items() if "/arms/treatment/" in path}
    clients = str(TrackMaker(given, files).own_traffic)
    return found | {"clients": clients}, files[REPORT]


@pytest.mark.parametrize("name", FIELDS)
def test_a_setting_becomes_what_map_a_says(name: str) -> None:
    context = context_of(name)
    before = with_settings(context)
    after = with_settings(context | {name: other(name, getattr(before, name))})
    assert getattr(after, name) != getattr(before, name)
    try:
        changed, report = treatment(after)
    except NotMappedError as error:
        assert "; proposal: " in str(error)
        return
    row = setting_row(name)
    if row.status == "none":
        (line,) = [line for line in report.splitlines() if line.startswith(f"| `{name}` |")]
        assert "| none |" in line or "| exact |" in line
        return
    assert changed != treatment(before)[0]
