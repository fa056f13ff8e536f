"""Seeds and streams of the random draws of policies."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import numpy as np

from blis_jax.errors import ConfigError
from blis_jax.workload.go_random import Stream, subsystem_seed

BY_WORKLOAD, ALL_ALIKE = "workload", "fixed"  # rules that records name
FIXED = 0  # the seed of every run before draws followed the workload's seed
_POLICIES, _NUM_SEEDS = 2**63, 2**64


def policy_seed(seed: int) -> int:
    """Return the seed from which policies draw in a run whose workload has the seed `seed`.

    It depends on the workload's seed alone, so all configurations on one seed share their draws. Its highest bit is
    set, which is never set in a key for drawing requests, so policies and requests never share a draw.
    """
    return seed % _NUM_SEEDS | _POLICIES


def policy_seed_under(rule: str, seed: int) -> int:
    """Return the seed from which policies draw under a rule; `ALL_ALIKE` repeats runs that all drew from one seed."""
    if rule not in (BY_WORKLOAD, ALL_ALIKE):
        raise ConfigError(
            f"the rule {rule!r} for the seeds of random policies is unknown; "
            f"use {BY_WORKLOAD} or {ALL_ALIKE}"
        )
    return policy_seed(seed) if rule == BY_WORKLOAD else FIXED


def router_draws(policy_seed: int, count: int, source: RandomSource) -> np.ndarray:
    """Return the first `count` numbers below 2^31 of the stream with which the reference breaks ties, int32[count]."""
    stream = _stream(policy_seed, source)
    return np.array([stream.int31() for _ in range(count)], np.int32)


def normal_draws(policy_seed: int, count: int, source: RandomSource) -> np.ndarray:
    """Return the first `count` standard normal numbers of one of the reference's streams, float64[count]."""
    stream = _stream(policy_seed, source)
    return np.array([stream.norm_float64() for _ in range(count)], np.float64)


def _stream(policy_seed: int, source: RandomSource) -> Stream:
    return Stream(subsystem_seed(policy_seed % _POLICIES, str(source.origin)))


class RandomSource(enum.Enum):
    """The consumers of random numbers in a run, each with its first key number or the name of its stream.

    The engine draws random numbers only for these. The keys of several scorers are numbered consecutively from the
    first scorer's. A consumer that is no policy has a test of the configuration that says whether it draws.
    """

    ADMISSION = 0
    ROUTING = 1
    PICKER = 2
    PRIORITY = 3
    SCHEDULER = 4
    SCORERS = 5
    CLUSTER = 1001  # beyond any number of scorers
    HAND_OVER = 1002
    RUN = 1003  # shared by all decisions of a run
    PHASES = 1004, lambda config: config.snapshot_phases == "drawn"
    LOSS = 1005, lambda config: config.prefix_index_loss > 0  # of news for the router's index
    SOURCE = 1007
    DRAFTS = 1008, lambda config: config.speculative_config.is_drawn
    REMOVAL_LOSS = 1006, lambda config: config.prefix_index_loss > 0  # that a block left a cache
    # the reference's streams
    ROUTER = "router"  # for ties; it is seeded with the flag --seed
    DECODE_ROUTER = "decode-router"
    PREFILL_ROUTER = "prefill-router"
    LOADING = "instance-loading"
    SCRAPES = "autoscaler"
    TRANSFERS = "kv-offload", lambda config: config.kv_offload_config.has_jitter

    def __init__(self, origin: int | str, is_used: Callable[[Any], bool] | None = None) -> None:
        self.origin, self.is_used = origin, is_used
