"""Write the flags of one vLLM engine, and the order of requests as static keys by class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import numbered
from blis_jax.policies.contract import Policy
from blis_jax.workload.spec import WorkloadSpec
from sweeps.promote.maps.rows import policy_row
from sweeps.promote.promotion import Promotion, not_mapped
from sweeps.promote.store import data_file
from sweeps.runs.requests import workload_from, workload_of
from sweeps.strategies.moved import known_as

CLASSES = ("critical", "standard", "batch", "sheddable", "background")
_LIKE_SHEDDABLE = ("batch", "sheddable", "background")  # in policies with three classes
STRICT_MS = (
    10_000_000  # ms that one unit of priority is worth where priority does not grow with age
)
BY_PRIORITY = ("priority-fcfs", "priority-cached")
_TIERED = ("slo-tiered", "load-adaptive")


@dataclass(frozen=True)
class StaticOrder:
    """Hold keys by class: a request's key is its arrival minus the lead, in ms, and the least comes first."""

    leads_ms: Mapping[str, int]
    is_exact: bool
    note: str

    @property
    def is_by_class(self) -> bool:
        """Return whether it is another order than that of arrival."""
        return len(set(self.leads_ms.values())) > 1


def numbers_of_policy(policy: Policy) -> dict[str, float]:
    """Return a policy's numbers by field."""
    return {name: float(value) for name, value in vars(policy.values()).items()}


def order_of(promotion: Promotion, config: ClusterConfig) -> StaticOrder | None:
    """Return the static order of a configuration; None for the engine's own, first come first served.

    Raises:
        NotMappedError: neither vLLM nor the router can order so.
    """
    scheduler, name = known_as(config.scheduler), known_as(config.priority_policy)
    if scheduler == "fcfs":
        return None
    if scheduler not in BY_PRIORITY:
        row = policy_row("scheduler", scheduler)
        problem = row.rule if row else "vLLM has no plugins for the order of its queue"
        proposal = row.proposal if row else "use scheduler priority-fcfs with a priority by class"
        raise not_mapped(promotion, "scheduler", f"{scheduler}: {problem}", proposal)
    if name == "constant":
        return None
    offsets, is_exact, note = _offsets_ms(promotion, config)
    if scheduler == "priority-cached":
        is_exact, note = False, f"{note}; the worth of cached blocks is left out"
    return StaticOrder(offsets, is_exact, note)


def _offsets_ms(promotion: Promotion, config: ClusterConfig) -> tuple[dict[str, int], bool, str]:
    """Return the lead of each class, ms; whether the order is the simulated one; how it was made."""
    name = known_as(config.priority_policy)
    numbers = numbers_of_policy(numbered(config).priority)
    if name == "slo-based":
        return dict.fromkeys(CLASSES, 0), True, "the order of arrival"
    if name == "slo-class":
        bases = {slo_class: numbers[f"base_{slo_class}"] for slo_class in CLASSES}
        offsets = {key: _worth_ms(base, numbers["age_weight"]) for key, base in bases.items()}
        return offsets, True, "base ÷ age weight"
    if name in _TIERED:
        grace = {"critical": 0.0, "standard": numbers["grace_standard_us"]}
        grace |= dict.fromkeys(_LIKE_SHEDDABLE, numbers["grace_sheddable_us"])
        offsets = {
            slo_class: _worth_ms(base, numbers["age_weight"]) - round(grace[slo_class] / 1000)
            for slo_class, base in _three(numbers, "base_{}").items()
        }
        is_exact = name == "slo-tiered" and not any(grace.values())
        note = "base ÷ age weight" + (" - grace period" if any(grace.values()) else "")
        if name == "load-adaptive":
            note += "; the classes always fully apart"
        return offsets, is_exact, note
    if name == "slo-deadline":
        deadlines = _three(numbers, "deadline_{}_us")
        offsets = {slo_class: -round(value / 1000) for slo_class, value in deadlines.items()}
        return offsets, False, "earliest deadline first, without bases"
    row = policy_row("priority", name)
    problem = (
        row.rule if row else "a queue's key is static, and the priority is a function of a file"
    )
    proposal = row.proposal if row else "use slo-tiered, whose order is a static key"
    raise not_mapped(promotion, "priority_policy", f"{name}: {problem}", proposal)


def _three(numbers: Mapping[str, float], form: str) -> dict[str, float]:
    """Return a number of each class in a policy that knows three."""
    found = {name: numbers[form.format(name)] for name in ("critical", "standard")}
    rest = numbers[form.format("sheddable")]
    return found | dict.fromkeys(_LIKE_SHEDDABLE, rest)


def _worth_ms(base: float, age_weight: float) -> int:
    """Return how many ms of age a base is worth; the weight is priority per µs."""
    return round(base / age_weight / 1000) if age_weight > 0 else round(base * STRICT_MS)


GIB = 2**30


def flags_of_engine(promotion: Promotion, config: ClusterConfig) -> dict[str, Any]:
    """Return the flags by name, in a fixed order; false stands for `--no-…`.

    Raises:
        NotMappedError: vLLM cannot run so.
    """
    tokens, sequences = config.max_num_scheduled_tokens, config.max_num_running_reqs
    if tokens < sequences:
        problem = (
            f"{tokens} tokens for {sequences} sequences, and vLLM wants at least as many tokens"
        )
        raise not_mapped(
            promotion, "max_num_scheduled_tokens", problem, f"set max_num_running_reqs to {tokens}"
        )
    if config.kv_offload_config.cpu_bytes_to_use:
        problem = "a file of tiers, and this command writes one CPU tier"
        raise not_mapped(promotion, "kv_offload_config", problem, "set kv_cpu_blocks in its place")
    flags: dict[str, Any] = {
        "block-size": config.block_size_in_tokens,
        **({"max-model-len": config.max_model_len} if config.max_model_len else {}),
        "tensor-parallel-size": config.tp,
        **({"data-parallel-size": config.dp} if config.dp > 1 else {}),
        **({"all2all-backend": config.moe_comm_backend} if config.moe_comm_backend else {}),
        "gpu-memory-utilization": config.gpu_memory_utilization,
        "max-num-seqs": sequences,
        "max-num-batched-tokens": tokens,
        "enable-chunked-prefill": True,
        "long-prefill-token-threshold": prefill_threshold(promotion, config)[0],
        "enable-prefix-caching": config.enable_prefix_caching,
        "scheduling-policy": "priority" if known_as(config.scheduler) in BY_PRIORITY else "fcfs",
    }
    if config.kv_cpu_blocks:
        flags["kv-offloading-size"] = offload_gib(promotion, config)
        flags["kv-offloading-backend"] = "native"
    return flags


def command_of(flags: Mapping[str, Any]) -> str:
    """Return the command line; the scenario's own cannot be emptied, only replaced."""
    words = [
        "${accelerator.runtimePreamble}\nvllm serve /model-cache/$MODEL_PATH",
        "--host 0.0.0.0",
        "--served-model-name $MODEL_NAME",
        "--port $VLLM_METRICS_PORT",
        "${accelerator.dtypeArgs}",
        "${accelerator.executionArgs}",
        "--no-enable-log-requests",
        "--disable-uvicorn-access-log",
        "--disable-access-log-for-endpoints=/health,/metrics,/v1/models",
    ]
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words.append(f"--{name} {value}")
    return " \\\n".join(words) + "\n"


def offload_gib(promotion: Promotion, config: ClusterConfig) -> float:
    """Return how many GiB of CPU memory hold the CPU tier's blocks, over all ranks of an engine."""
    shape = data_file("configs/data/models.yaml").get(config.model)
    if shape is None:
        problem = f"the KV size of a token of {config.model} is not known"
        proposal = (
            "add the model to sweeps/promote/configs/data/models.yaml, or set kv_cpu_blocks to 0"
        )
        raise not_mapped(promotion, "kv_cpu_blocks", problem, proposal)
    of_token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"] * shape["bytes"]
    return round(config.kv_cpu_blocks * config.block_size_in_tokens * of_token / GIB, 3)


def prefill_threshold(promotion: Promotion, config: ClusterConfig) -> tuple[int, bool]:
    """Return an engine's threshold, that of the most frequent class, and whether every class has it."""
    if not config.slo_prefill:
        return config.long_prefill_token_threshold, True
    by_class = {
        "critical": config.slo_prefill_critical,
        "sheddable": config.slo_prefill_sheddable,
        "standard": config.long_prefill_token_threshold,
    }
    shares = class_shares(workload_of_promotion(promotion))
    merged: dict[str, float] = {}
    for slo_class, share in shares.items():
        key = slo_class if slo_class in by_class else "standard"
        key = "sheddable" if slo_class in ("batch", "background") else key
        merged[key] = merged.get(key, 0.0) + share
    most = max(merged, key=lambda name: (merged[name], name))
    return by_class[most], len({by_class[name] for name in merged}) == 1


def workload_of_promotion(promotion: Promotion) -> WorkloadSpec:
    """Return the workload of the strategy's file; `mixed` without one."""

    strategy = promotion.arm.strategy
    return workload_from("mixed") if strategy is None else workload_of(strategy)


def class_shares(spec: WorkloadSpec) -> dict[str, float]:
    """Return the share of the requests of each class, `standard` for none."""
    total = sum(client.rate_fraction for client in spec.clients) or 1.0
    found: dict[str, float] = {}
    for client in spec.clients:
        name = client.slo_class or "standard"
        found[name] = found.get(name, 0.0) + client.rate_fraction / total
    return found or {"standard": 1.0}
