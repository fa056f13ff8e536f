"""What vLLM and llm-d call settings and policies that are named after BLIS here: for files, options and pages."""

from __future__ import annotations

SETTINGS = {  # of vLLM's engine: ours
    "max_num_batched_tokens": "max_num_scheduled_tokens",
    "max_num_seqs": "max_num_running_reqs",
    "block_size": "block_size_in_tokens",
    "num_gpu_blocks_override": "total_kv_blocks",
    "num_gpu_blocks": "total_kv_blocks",
    "tensor_parallel_size": "tp",
    "data_parallel_size": "num_instances",
    "scheduling_policy": "scheduler",
}
POLICIES: dict[
    str, dict[str, str]
] = {  # by kind, plugin types of llm-d's router and vLLM's orders: ours
    "scorer": {
        "prefix-cache-scorer": "prefix-affinity",
        "precise-prefix-cache-scorer": "precise-prefix-cache",
        "queue-scorer": "waiting-requests",
        "kv-cache-utilization-scorer": "kv-utilization",
        "running-requests-size-scorer": "running-requests",
        "active-request-scorer": "active-requests",
        "load-aware-scorer": "load-aware",
        "no-hit-lru-scorer": "no-hit-lru",
    },
    "picker": {"max-score-picker": "random-best", "weighted-random-picker": "weighted-random"},
    "scheduler": {"priority": "priority-fcfs"},
}


def names_of(setting: str) -> tuple[str, ...]:
    """Return what vLLM calls a setting."""
    return tuple(theirs for theirs, ours in SETTINGS.items() if ours == setting)
