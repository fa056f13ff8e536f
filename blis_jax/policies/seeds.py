"""Where the random draws of policies come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from blis_jax.cluster.revisions import registered
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from blis_jax.policies.named import NAMED_KINDS

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

BY_WORKLOAD, ALL_ALIKE = "workload", "fixed"  # rules that records name
FIXED = 0  # what every run drew from before draws followed the seed of its workload
_POLICIES, _NUM_SEEDS = 2**63, 2**64
ROUTER = "router"  # the reference's stream for ties, which it seeds with the flag --seed


def policy_seed(seed: int) -> int:
    """What policies draw from in a run whose workload has this seed.

    It depends on the workload's seed alone: every seed brings draws of its own, and all
    configurations on one seed have them in common. The highest bit is set, which it is in no key
    that requests are drawn with, so policies and requests never share a draw.
    """
    return seed % _NUM_SEEDS | _POLICIES


def policy_seed_under(rule: str, seed: int) -> int:
    """The same under a rule; `ALL_ALIKE` repeats runs that were made before there was another."""
    if rule not in (BY_WORKLOAD, ALL_ALIKE):
        raise ConfigError(
            f"the rule {rule!r} for the seeds of random policies is unknown; "
            f"use {BY_WORKLOAD} or {ALL_ALIKE}"
        )
    return policy_seed(seed) if rule == BY_WORKLOAD else FIXED


def router_draws(policy_seed: int, count: int, name: str = ROUTER) -> np.ndarray:
    """The first numbers below 2^31 of the stream by which the reference breaks ties, int32[count]."""
    from blis_jax.workload.go_random.stream import Stream  # workloads read configurations
    from blis_jax.workload.reference.seeds import subsystem_seed

    stream = Stream(subsystem_seed(policy_seed % _POLICIES, name))
    return np.array([stream.int31() for _ in range(count)], np.int32)


def normal_draws(policy_seed: int, count: int, name: str) -> np.ndarray:
    """The first standard normal numbers of one of the reference's streams, float64[count]."""
    from blis_jax.workload.go_random.stream import Stream  # workloads read configurations
    from blis_jax.workload.reference.seeds import subsystem_seed

    stream = Stream(subsystem_seed(policy_seed % _POLICIES, name))
    return np.array([stream.norm_float64() for _ in range(count)], np.float64)


def draws(config: ClusterConfig) -> bool:
    """Whether a policy of the configuration, by its declaration, or the phases of its snapshots may draw."""
    if config.snapshot_phases == "drawn":
        return True
    kinds = (*NAMED_KINDS, *registry.OPTIONAL_KINDS)
    names = {
        kind: registered(config, kind, str(getattr(config, registry.SETTINGS[kind])))
        for kind in kinds
    }
    named = [(kind, name) for kind, name in names.items() if name != registry.NONE]
    own = (*config.decode_scorers(), *config.prefill_scorers())
    of_decode = ("routing", config.decode_routing_policy), ("picker", config.decode_routing_picker)
    named += (pair for pair in of_decode if pair[1] != registry.SAME)
    named += (("scorer", name) for name, _ in (*config.scorers(), *own))
    found = (registry.find(kind, name) for kind, name in named)
    return any(one.is_random or one.reads_draws for one in found)
