"""Where the random draws of policies come from."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.policies.named import Chosen, ChosenRouter, numbered

if TYPE_CHECKING:
    from collections.abc import Callable

    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.workload.go_random.stream import Stream

BY_WORKLOAD, ALL_ALIKE = "workload", "fixed"  # rules that records name
FIXED = 0  # what every run drew from before draws followed the seed of its workload
_POLICIES, _NUM_SEEDS = 2**63, 2**64


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


def router_draws(policy_seed: int, count: int, source: RandomSource) -> np.ndarray:
    """Return the first numbers below 2^31 of a stream by which the reference breaks ties, int32[count]."""
    stream = _stream(policy_seed, source)
    return np.array([stream.int31() for _ in range(count)], np.int32)


def normal_draws(policy_seed: int, count: int, source: RandomSource) -> np.ndarray:
    """Return the first standard normal numbers of one of the reference's streams, float64[count]."""
    stream = _stream(policy_seed, source)
    return np.array([stream.norm_float64() for _ in range(count)], np.float64)


def _stream(policy_seed: int, source: RandomSource) -> Stream:
    from blis_jax.workload.go_random.stream import Stream  # workloads read configurations
    from blis_jax.workload.reference.seeds import subsystem_seed

    return Stream(subsystem_seed(policy_seed % _POLICIES, str(source.origin)))


def draws(config: ClusterConfig) -> bool:
    """Whether something may draw from the policy seed in a run of the configuration."""
    return any(source.is_used(config) for source in RandomSource)


def _by_policy(config: ClusterConfig) -> bool:
    """Whether a policy in use says that it draws."""
    used = numbered(config)
    routers: list[Chosen | ChosenRouter] = [
        used,
        *(own for own in (used.decode, used.prefill) if own is not None),
    ]
    found = [used.admission, used.priority, used.scheduler, used.cluster, used.hand_over]
    for router in routers:
        found += [router.routing, router.picker, *(scorer for scorer, _ in router.scorers)]
    return any(policy is not None and policy.may_draw for policy in found)


class RandomSource(enum.Enum):
    """What draws in a run, each with the number of its keys or the name of its stream, and where it draws.

    The engine has no other way to a random number, so what draws cannot be left out of `draws`. Scorers' keys follow
    each other from the first one's on.
    """

    ADMISSION = 0, _by_policy
    ROUTING = 1, _by_policy
    PICKER = 2, _by_policy
    PRIORITY = 3, _by_policy
    SCHEDULER = 4, _by_policy
    SCORERS = 5, _by_policy
    CLUSTER = 1001, _by_policy  # beyond any number of scorers
    HAND_OVER = 1002, _by_policy
    RUN = 1003, _by_policy  # what all decisions of a run have in common
    PHASES = 1004, lambda config: config.snapshot_phases == "drawn"
    LOSS = 1005, lambda config: config.prefix_index_loss > 0  # of news for the router's index
    REMOVAL_LOSS = 1006, lambda config: config.prefix_index_loss > 0  # that a block left a cache
    # the reference's streams
    ROUTER = "router", _by_policy  # for ties; it is seeded with the flag --seed
    DECODE_ROUTER = "decode-router", _by_policy
    PREFILL_ROUTER = "prefill-router", _by_policy
    LOADING = "instance-loading", _by_policy
    SCRAPES = "autoscaler", _by_policy

    def __init__(self, origin: int | str, is_used: Callable[[ClusterConfig], bool]) -> None:
        self.origin, self.is_used = origin, is_used
