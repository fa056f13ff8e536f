"""Files without a defect, to plant one in."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

CONFIG, OVERLAY = "arms/a/endpoint-picker-config.yaml", "arms/a/scenario-overlay.yaml"
FLAGS, OBJECTS = "arms/a/vllm-flags.yaml", "arms/a/kubernetes.yaml"
PRIORITY, MIX = "engine-priority.yaml", "profiles/priority-mix/a1.yaml.in"

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
        "epp": {"flags": {"allow-experimental-plugins": "true"}},
        "inferenceObjectives": [{"name": "slo-critical", "priority": 4}],
    },
}  # fmt: skip
_FLAGS = {"block-size": 16, "max-num-batched-tokens": 1024, "max-num-seqs": 256}


def _objective(name: str, priority: int) -> dict[str, Any]:
    return {
        "apiVersion": "llm-d.ai/v1alpha2",
        "kind": "InferenceObjective",
        "metadata": {"name": f"slo-{name}", "labels": {"slo-class": name}},
        "spec": {"priority": priority, "poolRef": {"name": "pool"}},
    }


_POOL = {
    "apiVersion": "inference.networking.k8s.io/v1",
    "kind": "InferencePool",
    "metadata": {"name": "pool"},
    "spec": {
        "selector": {"matchLabels": {"app": "model"}},
        "targetPorts": [{"number": 8000}, {"number": 8001}],
        "endpointPickerRef": {"name": "epp", "port": {"number": 9002}},
    },
}
_PRIORITY = {
    "kind": "EnginePriority",
    "field": "priority",
    "lower_is_earlier": True,
    "set_by": "client",
    "key": "arrival in ms - offset_ms",
    "classes": {
        "critical": {"offset_ms": 900, "ttft_header_ms": 0},
        "sheddable": {"offset_ms": 0, "ttft_header_ms": 900},
    },
}
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
    """Plain data by path; Kubernetes objects as a list."""
    objects = [_objective("critical", 4), _objective("sheddable", -2), _POOL]
    given = {
        CONFIG: _CONFIG,
        OVERLAY: _OVERLAY,
        FLAGS: _FLAGS,
        OBJECTS: objects,
        PRIORITY: _PRIORITY,
        MIX: _MIX,
    }
    return copy.deepcopy(given)


def texts(given: Mapping[str, Any]) -> dict[str, str]:
    """The files of plain data."""
    return {
        path: yaml.safe_dump_all(content) if path == OBJECTS else yaml.safe_dump(content)
        for path, content in given.items()
    }
