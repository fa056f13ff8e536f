"""The names in vLLM and llm-d of settings and policies that are named after BLIS here: for files, options and pages."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from blis_jax.core.kinds import KINDS, ROUTER
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import gpu_named

SETTINGS = {  # of vLLM's engine and of its deployments: ours
    "gpu": "hardware",
    "replicas": "num_instances",
    "max_num_batched_tokens": "max_num_scheduled_tokens",
    "max_num_seqs": "max_num_running_reqs",
    "block_size": "block_size_in_tokens",
    "num_gpu_blocks_override": "total_kv_blocks",
    "num_gpu_blocks": "total_kv_blocks",
    "tensor_parallel_size": "tp",
    "data_parallel_size": "num_instances",
    "scheduling_policy": "scheduler",
}
_PARALLEL = (
    "step times are those of tensor parallelism (tensor_parallel_size) and of replicas (data_parallel_size); calibrate "
    "fits those of a server that is split otherwise"
)
_DRAFTS = (
    "drafted tokens are declared in a JSON file: --speculative-config FILE of run, or in an arm "
    "vllm:speculative_config=FILE"
)
_LOAD = "it belongs to the load; --rate, --num-requests and --workload of the command say how requests come"
_OF_ENGINE = "step times hold what the measured server did; calibrate fits those of a server that does it otherwise"
_ADAPTERS = "adapters are declared in a file, lora_config, under the profile blis-2026-08"
_TYPE = "KV memory is counted in blocks: num_gpu_blocks_override says how many; fp8 has room for twice as many as fp16"
_STATES = (
    "with mamba_cache_mode=align the state of linear attention is kept at whole KV blocks, of block_size tokens, as in "
    "vLLM"
)
_PARTIAL = "max_num_batched_tokens bounds the prompts of a step, long_prefill_token_threshold the chunk of one"
_TIER = "KV blocks beside those of the GPU are kv_cpu_blocks"
NOT_HERE = {  # options of vLLM's and SGLang's servers, with their replacement here
    **dict.fromkeys(("pipeline_parallel_size", "expert_parallel_size", "pp_size", "ep_size"), _PARALLEL),
    **dict.fromkeys(("decode_context_parallel_size", "prefill_context_parallel_size"), _PARALLEL),
    **dict.fromkeys(("speculative_config", "num_speculative_tokens", "speculative_model"), _DRAFTS),
    **dict.fromkeys(("speculative_algorithm", "speculative_num_draft_tokens"), _DRAFTS),
    **dict.fromkeys(("dtype", "quantization", "enforce_eager", "async_scheduling", "compilation_config"), _OF_ENGINE),
    **dict.fromkeys(("enable_lora", "max_loras", "max_lora_rank", "lora_modules"), _ADAPTERS),
    **dict.fromkeys(("kv_cache_dtype", "calculate_kv_scales"), _TYPE),
    "mamba_block_size": _STATES,
    **dict.fromkeys(("swap_space", "kv_offloading_size", "enable_hierarchical_cache", "hicache_ratio"), _TIER),
    **dict.fromkeys(("request_rate", "num_prompts", "random_input_len", "random_output_len"), _LOAD),
    "kv_transfer_config": "prefill and decode apart are instances=1P2D, and KV beyond the GPU is kv_cpu_blocks or "
    "kv_offload_config",
    "disaggregation_mode": "prefill and decode apart are instances=1P2D",
    "cpu_offload_gb": f"weights stay on the GPU here; {_TIER}",
    **dict.fromkeys(("max_num_partial_prefills", "max_long_partial_prefills"), _PARTIAL),
    "enable_chunked_prefill": "prompts are always computed in chunks, as many tokens a step as "
    "max_num_batched_tokens leaves",
    "schedule_policy": "the order of the wait queue is scheduler",
    "disable_radix_cache": "vLLM's name is used here, enable_prefix_caching=false",
    **{
        theirs: f"vLLM's name is used here, {name}"
        for theirs, name in {
            "chunked_prefill_size": "max_num_batched_tokens",
            "max_running_requests": "max_num_seqs",
            "mem_fraction_static": "gpu_memory_utilization",
            "tp_size": "tensor_parallel_size",
            "dp_size": "data_parallel_size",
            "page_size": "block_size",
            "context_length": "max_model_len",
        }.items()
    },
}  # fmt: skip
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


_STICKY = "sessions stay with an instance under sweeps/strategies/policies/hashes.py:session_hashed"
_CACHED = "requests go to cached prompts under weighted, with routing_scorers=prefix-affinity:3,queue-depth:2"
_DRAWN = "power-of-two with power_of_two_candidates=1 draws one of all instances"
_LEAST = "least-loaded takes the instance with the fewest requests"
_ROUTERS_ELSEWHERE = {  # of llm-d, SGLang, Dynamo and Envoy: what does that here
    **dict.fromkeys(
        ("session-affinity", "session-affinity-scorer", "sticky", "consistent-hash", "ring-hash"),
        _STICKY,
    ),
    **dict.fromkeys(
        ("cache-aware", "kv", "kv-aware", "kvaware", "prefixaware", "prefix-aware"), _CACHED
    ),
    **dict.fromkeys(("random", "random-picker"), _DRAWN),
    **dict.fromkeys(
        ("least-request", "least-requests", "least-connections", "shortest-queue"), _LEAST
    ),
}


# names that are rarely used after `vllm serve`
_SELDOM = {"gpu", "replicas", "num_gpu_blocks", "num_gpu_blocks_override", "data_parallel_size"}


def here_instead(kind: str, name: str) -> str:
    """Return words on what does here what another router's policy of this name does; none for a name without such."""
    here = _ROUTERS_ELSEWHERE.get(name.lower().replace("_", "-")) if kind == "routing" else None
    return f"; {here}" if here else ""


def names_of(setting: str) -> tuple[str, ...]:
    """Return vLLM's names of a setting."""
    return tuple(theirs for theirs, ours in SETTINGS.items() if ours == setting)


def first_name(setting: str) -> str:
    """Return the name under which help lists a setting: that of `vllm serve`, else this package's."""
    return next((name for name in names_of(setting) if name not in _SELDOM), setting)


# the kind of the policies that a setting names
NAMED_BY = (
    {kind.setting: kind.name for kind in KINDS.values()}
    | {kind.decode_setting: kind.name for kind in ROUTER}
    | {"prefill_routing_scorers": "scorer"}
)


def ours(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings under this package's names, the GPU too.

    Raises:
        ConfigError: a setting is given under two names.
    """
    by_name: dict[str, Any] = {}
    for name, value in settings.items():
        our_name = SETTINGS.get(name, name)
        if our_name in by_name:
            other = next(
                setting for setting in settings if SETTINGS.get(setting, setting) == our_name
            )
            raise ConfigError(f"{other} and {name} are the same setting; give one of them")
        by_name[our_name] = (
            gpu_named(value) if our_name == "hardware" and isinstance(value, str) else value
        )
    return by_name


def setting_named(name: str) -> str:
    """Return this package's name of a setting, or of a scorer's weight; other names are returned unchanged."""
    setting, _, scorer = name.partition(".")
    if setting == KINDS["scorer"].setting and scorer:
        return f"{setting}.{POLICIES['scorer'].get(scorer, scorer)}"
    return SETTINGS.get(name, name)


def policies_named(setting: str, text: str) -> str:
    """Return the policy in a setting's value, or its list of scorers, under this package's names."""
    return with_names(text, POLICIES.get(NAMED_BY[setting], {}))


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return a name, or a list of `name:weight` pairs, with names replaced as in `names`; unchanged if none occurs."""
    pairs = [part.strip().partition(":") for part in text.split(",")]
    if not any(name in names for name, _, _ in pairs):
        return text
    return ",".join(f"{names.get(name, name)}{colon}{rest}" for name, colon, rest in pairs)


def as_written(problem: str, settings: Mapping[str, Any]) -> str:
    """Return a message that begins with this package's name of a setting, with the name in `settings` in its place."""
    for name in settings:
        setting = SETTINGS.get(name)
        if setting is not None and re.match(rf"{setting}\b", problem):
            return name + problem.removeprefix(setting)
    return problem
