"""Files without a defect, to plant one in."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from sweeps.promote.llmd.roles import BY_PREFIX, MOVES_KV, POOLS, PodRoles, with_roles

CONFIG, OVERLAY = "arms/a/endpoint-picker-config.yaml", "arms/a/scenario-overlay.yaml"
FLAGS, MIX = "arms/a/vllm-flags.yaml", "profiles/priority-mix/a1.yaml.in"
PLUGINS = "generated-plugins.yaml"

_CONFIG: dict[str, Any] = {
    "apiVersion": "llm-d.ai/v1alpha1",
    "kind": "EndpointPickerConfig",
    "featureGates": ["flowControl"],
    "plugins": [
        {"type": "decode-filter"},
        {"type": "approx-prefix-cache-producer", "parameters": {"autoTune": False, "blockSizeTokens": 64}},
        {"type": "prefix-cache-scorer", "parameters": {"prefixMatchInfoProducerName": "approx-prefix-cache-producer"}},
        {"type": "queue-scorer"},
        {"type": "utilization-filter", "parameters": {"conditions": []}},
        {"type": "max-score-picker"},
        {"type": "slo-deadline-ordering-policy"},
        {"type": "concurrency-detector", "parameters": {"maxConcurrency": 96}},
        {"type": "probabilistic-admitter"},
        {"type": "engine-priority", "parameters": {"slo-critical": 900.0, "slo-sheddable": 0.0}},
    ],
    "schedulingProfiles": [
        {
            "name": "default",
            "plugins": [
                {"pluginRef": "decode-filter"},
                {"pluginRef": "utilization-filter"},
                {"pluginRef": "prefix-cache-scorer", "weight": 3.0},
                {"pluginRef": "queue-scorer", "weight": 2.0},
                {"pluginRef": "max-score-picker"},
            ],
        }
    ],
    "flowControl": {
        "maxRequests": "500",
        "defaultRequestTTL": "60s",
        "saturationDetector": {"pluginRef": "concurrency-detector"},
        "priorityBands": [{"priority": 0, "maxRequests": "1k", "orderingPolicyRef": "slo-deadline-ordering-policy"}],
    },
}  # fmt: skip
_OVERLAY = {
    "prefill": {"enabled": True, "replicas": 1},
    "decode": {
        "replicas": 2,
        "vllm": {"customCommand": "vllm serve m --block-size 16 --max-num-batched-tokens 1024 --max-num-seqs 256"},
    },
    "router": {
        "epp": {
            "flags": {"allow-experimental-plugins": "true"},
            "image": {"registry": "quay.io/example", "repository": "picker", "tag": "promoted"},
        },
        "inferenceObjectives": [{"name": "slo-critical", "priority": 4}, {"name": "slo-sheddable", "priority": -2}],
    },
}  # fmt: skip
_FLAGS = {"block-size": 16, "max-num-batched-tokens": 1024, "max-num-seqs": 256}


_PLUGINS = [
    {
        "type": "engine-priority", "kind": "other", "stability": "Alpha", "simulated": "static order",
        "package": "pkg/priority", "parameters": {"slo-critical": 900.0, "slo-sheddable": 0.0},
    }
]  # fmt: skip
_MIX = {
    "endpoint_url": "URL",
    "model": "MODEL",
    "api": {"type": "chat", "path": "/v1/chat/completions"},
    "load": {"duration_seconds": 60, "rate_per_second": 4.5, "max_in_flight": 64, "request_timeout_seconds": 60},
    "request": {"max_tokens": 128, "stream": True},
    "trafficClasses": [
        {
            "name": "critical", "weight": 0.5, "priority": 4, "objective": "slo-critical",
            "request": {"promptTemplate": "{variation} ", "promptRepeat": 3, "max_tokens": 128},
        }
    ],
}  # fmt: skip


def documents() -> dict[str, Any]:
    """Plain data by path."""
    given = {CONFIG: _CONFIG, OVERLAY: _OVERLAY, FLAGS: _FLAGS, PLUGINS: _PLUGINS, MIX: _MIX}
    return copy.deepcopy(given)


def pools() -> dict[str, Any]:
    """The same for pods with roles: two profiles, and a connector between the engines."""
    given = documents()
    given[CONFIG] = with_roles(given[CONFIG], PodRoles(POOLS, BY_PREFIX, {"nonCachedTokens": 1}))
    return given | {OVERLAY: copy.deepcopy(_OVERLAY | {"vllmCommon": MOVES_KV})}


def texts(given: Mapping[str, Any]) -> dict[str, str]:
    """The files of plain data."""
    return {path: yaml.safe_dump(content) for path, content in given.items()}
