"""The configuration that the options about the cluster describe."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from blis_jax.cluster import disaggregation
from blis_jax.cluster.node_pools import POLICY
from blis_jax.commands.august_files import with_files
from blis_jax.commands.flags.cluster_flags import CLUSTER_FLAGS, name_of
from blis_jax.commands.lacking import refuse_name
from blis_jax.commands.latency_settings import latency_settings
from blis_jax.commands.policy_files import options_of
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.policies import registry

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig


def cluster_config(given: Mapping[str, Any]) -> ClusterConfig:
    """The cluster that the given options describe; the rest takes the reference's defaults."""
    from blis_jax.cluster.config import AUGUST, FIELDS, POLICY_NAMES, ClusterConfig
    from blis_jax.cluster.instance_groups import check_number
    from blis_jax.cluster.revisions import OF_REVISION

    given = resolved(given)
    if given.get("tenant_shares"):
        raise ConfigError(
            "--policy-config: tenant_budgets have the names of tenants, which only run knows; give --tenant-budgets, "
            "where tenants are numbered in the order of their names"
        )
    defaults = {name_of(flag): flag.default for flag in CLUSTER_FLAGS}
    values = {
        name: given.get(name, default)
        for name, default in defaults.items()
        if name in FIELDS and name != "routing_scorers"
    }
    for name in POLICY_NAMES:  # an empty name is the default, as in the reference
        values[name] = values[name] or getattr(ClusterConfig, name)
    values["routing_scorers"] = given.get("routing_scorers", "")
    values["policy_numbers"] = given.get("policy_numbers", ())
    named = ("horizon", "variant", "corrected", "revision")
    values |= {name: given[name] for name in named if name in given}
    values |= latency_settings(given)
    for name in OF_REVISION if values.get("revision") == AUGUST else ():
        values[name] = given.get(name)
    values = {name: value for name, value in values.items() if value is not None}
    _check_scorers("--routing-scorers", values["routing_policy"], values["routing_scorers"])
    policy = values["decode_routing_policy"]
    policy = values["routing_policy"] if policy == registry.SAME else policy
    _check_scorers("--decode-routing-scorers", policy, values["decode_routing_scorers"])
    try:
        config = ClusterConfig(**values)
        check_number(config, given.get("num_instances", config.num_instances))
    except ConfigError as error:
        raise type(error)(_as_option(str(error), FIELDS)) from None
    _check_expert_parallel(given, config)
    return config


def _check_expert_parallel(given: Mapping[str, Any], config: ClusterConfig) -> None:
    """Refuse what BLIS refuses: the option changes nothing else."""
    from blis_jax.latency.model_files import model_description

    if not given.get("enable_expert_parallel"):
        return
    option = "--enable-expert-parallel"
    if config.latency_model != "trained-physics":
        raise ConfigError(f"{option} needs --latency-model trained-physics; leave one of them out")
    if not model_description(config.model, config.model_config).is_moe:
        raise ConfigError(f"{option}: model {config.model} has no experts; leave the option out")


def with_shares(
    config: ClusterConfig, shares: Mapping[str, float], tenant_names: Sequence[str]
) -> ClusterConfig:
    """Return the cluster with budgets by the names of tenants, which `tenant_names` has in the order of their codes.

    Raises:
        ConfigError: budgets are given by number, too.
    """
    if shares and config.tenant_budgets:
        raise ConfigError(
            "--tenant-budgets: the file of --policy-config has tenant_budgets, too; leave one of them out"
        )
    pairs = [
        f"{code}={shares[name]!r}"
        for code, name in enumerate(tenant_names)
        if name in shares and name
    ]
    return config.replace(tenant_budgets=",".join(pairs)) if pairs else config


def resolved(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with those of a revision, and of a policy file, under the names that settings have."""
    from blis_jax.cluster.config import AUGUST, REVISIONS

    found = dict(given)
    if found.get("variant") in REVISIONS:
        found["revision"] = found.pop("variant")
    if found.get("revision") == AUGUST:
        found.setdefault("latency_model", "trained-physics")
    found = with_files(found, found.get("revision") == AUGUST)
    path = found.pop("policy_config", None)
    if path is not None and found.get("revision") != AUGUST:
        raise ConfigError(
            "--policy-config is read with --profile blis-2026-08; give that profile, or options"
        )
    if path is not None:
        found = options_of(path) | found
    interval = found.pop("model_autoscaler_interval_us", None)
    if interval is not None:
        found |= {"cluster_policy": POLICY, f"{POLICY.replace('-', '_')}_interval_us": interval}
    found = _without_pools(found) if found.get("revision") == AUGUST else found
    policy = found.pop("preemption_policy", None)
    if policy is not None:
        found["slo_preemption"] = policy == "priority"
    return found


def _without_pools(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options without those of pools that are not there, which BLIS leaves without effect."""
    counts = ("prefill_instances", "decode_instances", "prefill_decode_instances")
    if given.get("prefill_instances"):
        return dict(given)
    has_pools = any(given.get(name) for name in (*counts, "encode_instances"))
    idle = [
        name for name in (disaggregation.OF_ONE_POOL if has_pools else _OF_POOLS) if name in given
    ]
    if not has_pools and given.get("pd_decider") in disaggregation.DECIDERS:
        idle.append("pd_decider")
    needed = "--prefill-instances" if has_pools else "--prefill-instances and --decode-instances"
    for name in idle:
        if given[name] not in ("never", 0, ""):
            warnings.warn(
                f"--{name.replace('_', '-')} has no effect without {needed}, as in BLIS",
                ConfigWarning,
                stacklevel=2,
            )
    return {name: value for name, value in given.items() if name not in idle}


_OF_POOLS = (
    *("pd_prefix_threshold", "pd_transfer_bandwidth", "pd_transfer_base_latency"),
    *disaggregation.OF_ONE_POOL,
    "prefill_routing_scorers",  # the decode pool's router is another mechanism's too
)


def _as_option(message: str, fields: Mapping[str, Any]) -> str:
    """The message with the field's name written as the option."""
    name = re.match(r"[a-z_]+(?=[: ])", message)  # a file may be named as a field
    if name is None or name.group() not in fields:
        return message
    return f"--{name.group().replace('_', '-')}{message[name.end() :]}"


def _check_scorers(option: str, policy: str, scorers: str) -> None:
    names = [part.partition(":")[0].strip() for part in scorers.split(",")]
    for name in names:
        refuse_name(name)
        if policy == "weighted" and names.count(name) > 1:
            raise ConfigError(f"{option}: {name!r} is given twice; add up its weights")
