"""Routers that share compilations: several in one program, where a number selects one, or a router as a table.

Compiling is most of the cost of a short run; a program with fifteen routers takes little longer to compile than one
with a single router. An interpreter for tables of operations is compiled once for all routers that can be written as
tables. It branches for every operation, so for many long runs of one router the compiled form is faster.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.named_policies import numbered
from blis_jax.core.pytrees import pytree
from blis_jax.core.types import EngineShape
from blis_jax.engine.cluster_params import rows_to_begin_with
from blis_jax.engine.mechanism import mechanism
from blis_jax.engine.phases.policy_calls import told
from blis_jax.policies.as_data.tables import as_table
from blis_jax.policies.contexts import Completion, GatewayContext
from blis_jax.policies.contract import Policies, Policy
from blis_jax.policies.reading import CPU_TIER, NotAsDataError

if TYPE_CHECKING:
    from jaxtyping import Array, Float

    from blis_jax.runs.options import Options

ROUTER = "routing_policy"


@pytree
class AlternativesParams:
    """The index of the policy that decides, and the numbers of all policies."""

    which: Float[Array | np.float64, ""]  # a whole number, since numbers of policies are float64
    of: tuple[Any, ...]


@dataclass(frozen=True)
class Alternative(Policy):
    """One of several routing policies: its function holds all of them, its numbers select the one that decides."""

    of: tuple[Policy, ...] = ()
    which: int = 0

    def values(self) -> AlternativesParams:
        """Return the index of the policy that decides, and the numbers of all policies."""
        return AlternativesParams(
            np.float64(self.which), tuple(policy.values() for policy in self.of)
        )

    def function(self) -> Policy:
        """Return the policy without numbers and index, on which a compiled program depends."""
        functions = tuple(policy.function() for policy in self.of)
        return dataclasses.replace(self, of=functions, which=0)


def alternatives(policies: Sequence[Policy]) -> tuple[Alternative, ...]:
    """Return each routing policy as an `Alternative`: it decides as it does alone, in a program shared by all."""
    together = _together(tuple(policy.function() for policy in policies))
    of = tuple(policies)
    return tuple(dataclasses.replace(together, of=of, which=at) for at in range(len(of)))


@functools.cache
def _together(of: tuple[Policy, ...]) -> Alternative:
    """Return the joint function of these policies, each with its own memory.

    All of them decide, then one decision is selected: a branch would copy the memories of the others.
    """

    def start(params: AlternativesParams, shape: EngineShape) -> tuple[Any, ...]:
        pairs = zip(of, params.of, strict=True)
        return tuple(policy.begin(numbers, shape) for policy, numbers in pairs)

    def decide(
        params: AlternativesParams, state: tuple[Any, ...], context: GatewayContext
    ) -> tuple[jax.Array, tuple[Any, ...]]:
        each = zip(of, params.of, state, strict=True)
        answers = [policy.ask(numbers, memory, context) for policy, numbers, memory in each]
        choices, after = zip(*answers, strict=True)
        which = params.which.astype(jnp.int32)
        return jnp.stack([choice.astype(jnp.int32) for choice in choices])[which], after

    def observe(
        params: AlternativesParams, state: tuple[Any, ...], news: Completion
    ) -> tuple[Any, ...]:
        return told(of, params.of, state, news)

    return Alternative(
        "routing",
        decide,
        AlternativesParams,
        start,
        observe if any(function.observe is not None for function in of) else None,
        is_random=any(bool(function.is_random) for function in of),
        of=of,
    )


# --- configurations ---------------------------------------------------------------------------------


def in_one_program(configs: Iterable[ClusterConfig]) -> dict[ClusterConfig, Policies]:
    """Return policies for each configuration, with which configurations that differ only in the router share a program.

    Left out are configurations that share with no other, or for which `_may_share` is false.

    Raises:
        ConfigError: a policy reads an input that its run does not have.
    """
    alike: dict[tuple[Any, ...], list[ClusterConfig]] = {}
    for config in filter(_may_share, dict.fromkeys(configs)):
        kind = tuple(getattr(config, name) for name in FIELDS if name != ROUTER)
        alike.setdefault(kind, []).append(config)
    shared: dict[ClusterConfig, Policies] = {}
    for members in alike.values():
        shared |= _handed_in(members)
    return shared


def _may_share(config: ClusterConfig) -> bool:
    """Return whether the router decides the same in a program shared with other routers.

    Not so: routers of blis-2026-08, which draw from streams of their own; precise KV routing, whose index depends on
    all routers; a router that hands values over to others; and one that reads scores without scorers of its own, since
    it would read another router's.
    """
    if config.is_august or config.precise_kv_routing:
        return False
    made = mechanism(config)
    reads_scores = made.routing.reads("scores", "picked") or made.admission.reads("picked")
    return made.routing.hands is None and (bool(made.scorers) or not reads_scores)


def _handed_in(members: Sequence[ClusterConfig]) -> dict[ClusterConfig, Policies]:
    """Return the policies for configurations that differ in the router only."""
    if len(members) < 2:
        return {}
    used = [numbered(config) for config in members]
    rated = next((policies for policies in used if policies.scorers), used[0])
    together = alternatives([policies.routing for policies in used])
    return {
        config: Policies(routing=routing, scorers=rated.scorers, picker=rated.picker)
        for config, routing in zip(members, together, strict=True)
    }


# --- as a table -----------------------------------------------------------------------------------


def router_as_table(config: ClusterConfig, options: Options) -> Policies:
    """Return policies whose router is the configuration's, as a table, to be passed with the configuration.

    Raises:
        NotAsDataError: the router has to be compiled, for the reason in the message.
        ConfigError: there is no such policy, or it has an error.
    """
    used = numbered(config)
    if options.form != "rows":
        raise NotAsDataError("on a GPU, lanes of one call take all branches of a table")
    if options.clock not in ("int32", "int64"):
        raise NotAsDataError("a table counts whole µs")
    if config.node_pools and config.cluster_policy != "none":
        raise NotAsDataError("a table is for a number of instances, and an autoscaler makes more")
    if config.kv_cpu_blocks and used.routing.reads(*CPU_TIER):
        raise NotAsDataError(
            f"{used.routing.words} reads what the CPU tier does, which is no input of a table"
        )
    table = as_table(used.routing, rows_to_begin_with(config), len(used.scorers))
    return Policies(routing=table, scorers=used.scorers, picker=used.picker)
