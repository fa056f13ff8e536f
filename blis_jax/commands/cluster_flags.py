"""The reference's options about the cluster and its policies, and the configuration they describe."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.commands.cli import Flag, Parser, number, numbers, truth, whole
from blis_jax.errors import ConfigError
from blis_jax.policies import registry

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig


def policy_numbers(text: str) -> tuple[tuple[str, float], ...]:
    """`routing.candidates=3,scorer.Mine.gain=0.5` as pairs."""
    pairs = []
    for part in text.split(",") if text else ():
        name, _, value = part.partition("=")
        pairs.append((name.strip(), number(value.strip())))
    return tuple(pairs)


KV_BLOCKS_WITHOUT_FIT = 1_000_000  # the reference's default beside given coefficients


SLOTS = Flag(
    "slots", whole, None, "N", "requests that one instance can hold; determined if not given"
)
MODEL_FLAGS = (
    Flag("model", str, "", "NAME", "model to serve, such as meta-llama/llama-3.1-8b-instruct"),
    Flag("hardware", str, "", "GPU", "GPU type, such as H100; the model's default if not given"),
    Flag("tp", whole, None, "N", "GPUs per instance (tensor parallelism); the model's default"),
    Flag("vllm-version", str, "", "V", "vLLM version of the fit; the model's default"),
    Flag(
        "alpha-coeffs",
        numbers,
        None,
        "A0,A1,A2",
        "µs of queueing per request, per prompt token, µs of output processing per token",
    ),
    Flag(
        "beta-coeffs",
        numbers,
        None,
        "B0,B1,B2[,B3]",
        "µs per step, per prefill and per decode token, and what --latency-model adds",
    ),
    Flag(
        "latency-model",
        str,
        "auto",
        "NAME",
        "model of a step's time; auto takes blackbox for three B, and for four B blackbox-context, or "
        "blackbox-attention in the routing variant",
    ),
    Flag(
        "coefficients-from",
        str,
        None,
        "FIT",
        "coefficients from a result of blis_jax.calibrate, in place of --alpha-coeffs and --beta-coeffs",
    ),
    Flag(
        "total-kv-blocks",
        whole,
        None,
        "N",
        "KV blocks of one instance; the fit's if not given, 1000000 with given coefficients",
    ),
    Flag("block-size-in-tokens", whole, 16, "N", "tokens in one KV block"),
)
BATCH_FLAGS = (
    Flag("max-num-running-reqs", whole, 256, "N", "most requests in the running batch"),
    Flag("max-num-scheduled-tokens", whole, 2048, "N", "token budget of one step"),
    Flag(
        "long-prefill-token-threshold",
        whole,
        0,
        "N",
        "most prompt tokens of one request in a step; 0: prompts are not chunked",
    ),
    Flag("slo-prefill", truth, False, "BOOL", "chunk critical and sheddable prompts separately"),
    Flag("slo-prefill-critical", whole, 128, "N", "threshold of critical requests, tokens"),
    Flag(
        "slo-prefill-sheddable", whole, 0, "N", "threshold of sheddable requests, tokens; 0: none"
    ),
    Flag(
        "slo-preemption", truth, False, "BOOL", "evict the least priority instead of the batch tail"
    ),
)


def _numbers(kinds: Collection[str]) -> tuple[Flag, ...]:
    """An option for every number of the package's policies of these kinds, as the policies declare it."""
    flags = []
    for setting, one in registry.settings().items():
        if one.kind in kinds:
            declared = one.number
            default = int(declared.default) if declared.is_whole else declared.default
            metavar = "US" if declared.unit == "µs" else "N" if declared.is_whole else "X"
            words = f"{', '.join(one.policies)}: {declared.meaning}"
            read = whole if declared.is_whole else number
            flags.append(Flag(setting.replace("_", "-"), read, default, metavar, words))
    return tuple(flags)


INSTANCES = Flag(
    "instances",
    str,
    (),
    "FILE",
    "YAML or JSON list of groups of instances with numbers of their own, in place of --num-instances",
)
GATEWAY_FLAGS = (
    Flag("num-instances", whole, 1, "N", "instances behind the router"),
    INSTANCES,
    Flag(
        "admission-policy",
        str,
        "always-admit",
        "NAME",
        "which requests are let in",
    ),
    Flag("admission-latency", whole, 0, "US", "µs from arrival to the admission decision"),
    Flag("cluster-policy", str, "none", "NAME", "when instances go down and come up"),
    Flag("hand-over-policy", str, "none", "NAME", "which requests move on with their KV"),
    Flag(
        "routing-policy",
        str,
        "round-robin",
        "NAME",
        "which instance gets a request",
    ),
    Flag(
        "routing-scorers",
        str,
        "prefix-affinity:3,queue-depth:2,kv-utilization:2",
        "LIST",
        "name:weight pairs for weighted routing",
    ),
    Flag(
        "routing-picker",
        str,
        "first-best",
        "NAME",
        "which instance weighted routing takes by the scores",
    ),
    Flag("routing-latency", whole, 0, "US", "µs from admission to the routing decision"),
    Flag(
        "snapshot-refresh-interval",
        whole,
        0,
        "US",
        "µs between refreshes of the router's view of KV use; 0: always fresh",
    ),
    Flag(
        "load-refresh-interval",
        whole,
        0,
        "US",
        "µs between refreshes of the router's view of queue depths and batch sizes; 0: always fresh",
    ),
    Flag(
        "snapshot-phases",
        str,
        "aligned",
        "WHEN",
        "when instances are refreshed: aligned, or each at times of its own: even over the interval, or drawn",
    ),
    Flag(
        "in-flight-counts",
        truth,
        True,
        "BOOL",
        "requests sent to an instance and not yet in its queue are part of its load; the router knows them at once",
    ),
    Flag(
        "num-gateways",
        whole,
        1,
        "N",
        "gateways that do not see each other's decisions; requests are dealt to them in turn",
    ),
    Flag(
        "prefix-index-delay",
        whole,
        0,
        "US",
        "µs from a routing until its prompt counts as cached in the router's index",
    ),
    Flag(
        "precise-kv-routing",
        truth,
        False,
        "BOOL",
        "the KV caches feed the prefix index of weighted routing, not the routings; needs prefix-affinity",
    ),
    Flag(
        "slo-priority-bridge", truth, False, "BOOL", "router stamps priorities (changes no result)"
    ),
    *_numbers(("admission", "routing", "scorer", "picker", "cluster", "hand_over")),
    Flag(
        "policy-numbers",
        policy_numbers,
        (),
        "LIST",
        "numbers of policies from files: KIND.NAME=X pairs, such as routing.candidates=3",
    ),
)
ORDER_FLAGS = (
    Flag(
        "priority-policy",
        str,
        "constant",
        "NAME",
        "which requests are urgent",
    ),
    Flag("scheduler", str, "fcfs", "NAME", "which request is first"),
    *_numbers(("priority", "scheduler")),
)
KV_TIER_FLAGS = (
    Flag("kv-cpu-blocks", whole, 0, "N", "KV blocks in CPU memory per instance; 0: no CPU tier"),
    Flag(
        "kv-offload-threshold",
        number,
        0.9,
        "X",
        "GPU use (0 to 1) above which blocks move to CPU memory",
    ),
    Flag("kv-transfer-bandwidth", number, 100.0, "X", "tokens per µs between the tiers"),
    Flag(
        "kv-transfer-base-latency", whole, 0, "US", "µs that each transfer takes beside its tokens"
    ),
)
CLUSTER_FLAGS = (*MODEL_FLAGS, *BATCH_FLAGS, *GATEWAY_FLAGS, *ORDER_FLAGS, *KV_TIER_FLAGS)


def add_cluster_flags(parser: Parser) -> None:
    """All options about the cluster and its policies, in groups."""
    from blis_jax.cluster.config import POLICY_NAMES, SCORER_NAMES
    from blis_jax.latency.registry import MODELS

    choices = {name.replace("_", "-"): names for name, names in POLICY_NAMES.items()}
    choices["routing-scorers"] = SCORER_NAMES
    choices["latency-model"] = tuple(MODELS)
    for title, flags in _CLUSTER_GROUPS:
        parser.add_flags(title, [_with_choices(flag, choices) for flag in flags])


_CLUSTER_GROUPS = (
    ("model and latency", MODEL_FLAGS),
    ("admission and routing", GATEWAY_FLAGS),
    ("priority and order of the wait queue", ORDER_FLAGS),
    ("batches", BATCH_FLAGS),
    ("KV blocks in CPU memory", KV_TIER_FLAGS),
)


def _with_choices(flag: Flag, choices: Mapping[str, Sequence[str]]) -> Flag:
    names = choices.get(flag.name)
    if not names:
        return flag
    return flag._replace(help=f"{flag.help}: {', '.join(names)}, or path/to/file.py:Name")


def cluster_config(given: Mapping[str, Any]) -> ClusterConfig:
    """The cluster that the given options describe; the rest takes the reference's defaults."""
    from blis_jax.cluster.config import FIELDS, POLICY_NAMES, ClusterConfig
    from blis_jax.cluster.instance_groups import check_number

    defaults = {flag.name.replace("-", "_"): flag.default for flag in CLUSTER_FLAGS}
    values = {
        name: given.get(name, default)
        for name, default in defaults.items()
        if name in FIELDS and name != "routing_scorers"
    }
    for name in POLICY_NAMES:  # an empty name is the default, as in the reference
        values[name] = values[name] or getattr(ClusterConfig, name)
    values["routing_scorers"] = given.get("routing_scorers", "")
    values["policy_numbers"] = given.get("policy_numbers", ())
    values |= {name: given[name] for name in ("horizon", "variant", "corrected") if name in given}
    values |= _latency(given)
    _check_scorers(values["routing_policy"], values["routing_scorers"])
    try:
        config = ClusterConfig(**values)
        check_number(config, given.get("num_instances", config.num_instances))
        return config
    except ConfigError as error:
        raise type(error)(_as_option(str(error), FIELDS)) from None


def _as_option(message: str, fields: Mapping[str, Any]) -> str:
    """The message with the field's name written as the option."""
    name = re.match(r"[a-z_]+(?=[: ])", message)  # a file may be named as a field
    if name is None or name.group() not in fields:
        return message
    return f"--{name.group().replace('_', '-')}{message[name.end() :]}"


def _latency(given: Mapping[str, Any]) -> dict[str, Any]:
    """Model, GPU, TP, coefficients and KV blocks: given coefficients win, else those of the fit."""
    from blis_jax.latency.coefficients import lookup

    model, gpu, tp = (given.get(name) for name in ("model", "hardware", "tp"))
    if not model:
        raise ConfigError(
            "--model is missing; for instance --model meta-llama/llama-3.1-8b-instruct"
        )
    if tp is not None and tp < 0:
        raise ConfigError(f"--tp must be at least 1, got {tp}")
    alpha, beta, fitted = _coefficients(given)
    if any(beta):
        blocks = given.get("total_kv_blocks", KV_BLOCKS_WITHOUT_FIT)
        found = {"hardware": gpu or "", "tp": tp or 0}
        found |= {"alpha_coeffs": alpha, "beta_coeffs": beta, "total_kv_blocks": blocks}
    elif any(alpha):
        raise ConfigError(
            "--alpha-coeffs without --beta-coeffs would give steps that take no time; "
            "give both, or neither to take the model's fit"
        )
    else:
        fit = lookup(model, gpu or None, tp or None, given.get("vllm_version") or None)
        blocks = given.get("total_kv_blocks", fit.total_kv_blocks)
        found = {"hardware": fit.gpu, "tp": fit.tp}
        found |= {"alpha_coeffs": fit.alpha, "beta_coeffs": fit.beta, "total_kv_blocks": blocks}
    return {"model": model.lower(), **found, **fitted}


def _coefficients(
    given: Mapping[str, Any],
) -> tuple[tuple[float, ...], tuple[float, ...], dict[str, str]]:
    """α and β as given or calibrated, zeros if neither; and the latency model of a calibration."""
    if "coefficients_from" not in given:
        none = (0.0, 0.0, 0.0)
        return given.get("alpha_coeffs", none), given.get("beta_coeffs", none), {}
    for name in ("alpha_coeffs", "beta_coeffs", "latency_model"):
        if name in given:
            written = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{written}: --coefficients-from is given too; give one of them")
    from pathlib import Path

    from blis_jax.calibrate.posterior import load

    posterior = load(Path(given["coefficients_from"]))
    return *posterior.coefficients(), {"latency_model": posterior.latency_model}


def _check_scorers(policy: str, scorers: str) -> None:
    names = [part.partition(":")[0].strip() for part in scorers.split(",")]
    for name in names:
        if policy == "weighted" and names.count(name) > 1:
            raise ConfigError(f"--routing-scorers: {name!r} is given twice; add up its weights")
