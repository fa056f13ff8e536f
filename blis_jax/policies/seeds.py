"""Where the random draws of policies come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError
from blis_jax.files.user_files import is_file
from blis_jax.policies import registry
from blis_jax.policies.named import MOVING_KINDS, NAMED_KINDS

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

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


def draws(config: ClusterConfig) -> bool:
    """Whether a policy of the configuration, or the phases of its snapshots, may draw; a file's policy always may."""
    if config.snapshot_phases == "drawn":
        return True
    kinds = (*NAMED_KINDS, *MOVING_KINDS)
    names = {kind: str(getattr(config, registry.SETTINGS[kind])) for kind in kinds}
    named = [(kind, name) for kind, name in names.items() if name != registry.NONE]
    named += (("scorer", name) for name, _ in (*config.scorers(), *config.decode_scorers()))
    of_decode = ("routing", config.decode_routing_policy), ("picker", config.decode_routing_picker)
    named += (pair for pair in of_decode if pair[1] != registry.SAME)
    return any(is_file(name) or registry.find(kind, name).is_random for kind, name in named)
