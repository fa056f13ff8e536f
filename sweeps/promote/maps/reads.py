"""Which signals a policy reads, found by letting JAX trace it once."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from blis_jax.lazy import jax, jnp
from blis_jax.policies.named import NAMED_KINDS, numbered
from blis_jax.policies.registry import OPTIONAL_KINDS

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.policies.contract import Policy

INSTANCES, SLOTS, KEYS = 4, 8, 8
CONTEXTS = {
    "admission": "gateway",
    "routing": "gateway",
    "scorer": "gateway",
    "picker": "picker",
    "priority": "queue",
    "scheduler": "queue",
    "cluster": "cluster",
    "hand_over": "hand_over",
    "victim": "victim",
    "offload": "offload",
}


class _Recorder:
    """Stands for a context: gives its fields, and notes which were asked for."""

    def __init__(self, fields: dict[str, Any], place: str, seen: set[str]) -> None:
        self._fields, self._place, self._seen = fields, place, seen

    def __getattr__(self, name: str) -> Any:
        value = self._fields[name]
        if not isinstance(value, _Recorder):
            self._seen.add(f"{self._place}.{name}")
        return value


def policies_of(config: ClusterConfig) -> Iterator[tuple[str, Policy]]:
    """The policies that a configuration uses, with their kinds."""
    chosen = numbered(config)
    for kind in (*NAMED_KINDS, *OPTIONAL_KINDS):
        policy = getattr(chosen, kind)
        if policy is not None:
            yield kind, policy
    for policy, _ in chosen.scorers:
        yield "scorer", policy


def signals_of(config: ClusterConfig) -> tuple[str, ...]:
    """The signals that the policies of a configuration read, as Map B names them."""
    found: set[str] = set()
    for _, policy in policies_of(config):
        found |= signals_read(policy)
    return tuple(sorted(found))


def signals_read(policy: Policy) -> set[str]:
    """The signals that one policy reads."""
    from blis_jax.core.types import EngineShape

    seen: set[str] = set()
    shape = EngineShape(INSTANCES, SLOTS, SLOTS, 1, 1, num_keys=KEYS, num_changes=SLOTS)

    def decide() -> Any:
        params = jax.tree.map(jnp.asarray, policy.values())
        context: Any = _context(policy, seen)
        return policy.decide(params, policy.start(params, shape), context)

    with jax.enable_x64(True):
        jax.eval_shape(decide)
    return seen


def _context(policy: Policy, seen: set[str]) -> _Recorder:
    place = CONTEXTS[policy.kind]
    count: tuple[int, ...] = (SLOTS,) if place in ("queue", "victim", "offload") else ()
    request = _Recorder(_request(count), "request", seen)
    key = jax.random.key_data(jax.random.key(0))
    if place == "queue":
        fields = _queue(policy, key)
    elif place == "victim":
        fields = _batch()
    elif place == "offload":
        fields = _contents()
    elif place == "picker":
        fields = {
            "scores": jnp.zeros(INSTANCES, jnp.float64),
            "is_eligible": jnp.ones(INSTANCES, bool),
            "key": key,
            "draws": jnp.zeros(INSTANCES, jnp.int32),
        }
    else:
        fields = _gateway(policy, key)
        fields["snapshots"] = _Recorder(_snapshots(), "snapshots", seen)
    return _Recorder(fields | {"request": request}, place, seen)


def _request(count: tuple[int, ...]) -> dict[str, Any]:
    from blis_jax.core.types import RequestView

    names = [field.name for field in dataclasses.fields(RequestView)]
    return {name: jnp.zeros(count, jnp.int32) for name in names}


def _snapshots() -> dict[str, Any]:
    from blis_jax.core.types import Snapshots

    reals: tuple[str, ...] = ("kv_utilization", "free_kv_blocks", "cache_hit_rate")
    reals += ("pending_transfer_us", "kv_thrashing_rate", "prompt_us")
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Snapshots):
        kind = jnp.float64 if field.name in reals else jnp.int32
        found[field.name] = jnp.zeros(INSTANCES, kind)
    found["num_rejected"] = jnp.zeros((), jnp.int32)
    found["is_active"] = jnp.ones(INSTANCES, bool)
    return found


def _gateway(policy: Policy, key: Any) -> dict[str, Any]:
    whole = jnp.zeros((), jnp.int32)
    names = ("num_prompt_blocks", "prompt_key", "now_us", "came_from", "computed_tokens")
    found: dict[str, Any] = dict.fromkeys(
        (*names, "is_decode", "block_size", "picked", "instance", "num_arrived"), whole
    )
    found |= {"key": key, "run_key": key, "is_up": jnp.ones(INSTANCES, bool)}
    found["is_paid"] = jnp.ones(INSTANCES, bool)
    found["role"] = jnp.zeros(INSTANCES, jnp.int32)
    found["scores"] = jnp.zeros(INSTANCES, jnp.float64)
    found["draws"] = jnp.zeros(INSTANCES, jnp.int32)
    if policy.reads_contents:
        from blis_jax.engine.gateway.signals import LeadingContents

        found["contents"] = LeadingContents(*(jnp.zeros(2, jnp.int32) for _ in range(3)))
    if policy.reads_outstanding:
        from blis_jax.engine.gateway.signals import Outstanding

        columns = [jnp.zeros((INSTANCES, SLOTS), jnp.int32) for _ in range(4)]
        found["outstanding"] = Outstanding(jnp.ones((INSTANCES, SLOTS), bool), *columns)
    if policy.reads_fleet:
        found["fleet"] = _fleet()
    return found


def _fleet() -> Any:
    """Instances without machines."""
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.core.fleet import FleetView
    from blis_jax.engine.fleet_params import fleet_params

    counts, times = jnp.zeros(INSTANCES, jnp.int32), jnp.zeros(INSTANCES, jnp.int32)
    is_not, nothing = jnp.zeros(INSTANCES, bool), jnp.int32(1)
    given = fleet_params(ClusterConfig(num_instances=INSTANCES), INSTANCES, 1, 0)
    params = jax.tree.map(jnp.asarray, given)
    more = jnp.array(False)
    return FleetView(params, counts, nothing, more, is_not, times, is_not, times, times)


def _queue(policy: Policy, key: Any) -> dict[str, Any]:
    counts = jnp.zeros(SLOTS, jnp.int32)
    names = ("queued_us", "num_expected_blocks", "num_cached_blocks")
    found: dict[str, Any] = dict.fromkeys(names, counts)
    whole = jnp.zeros((), jnp.int32)
    found |= dict.fromkeys(("queue_depth", "now_us", "instance"), whole)
    found |= {"is_waiting": jnp.ones(SLOTS, bool), "priority": jnp.zeros(SLOTS, jnp.float64)}
    found["handed"] = jnp.zeros(SLOTS, jnp.float64)
    if policy.reads_contents:
        from blis_jax.engine.gateway.signals import LeadingContents

        found["contents"] = LeadingContents(*(jnp.zeros((SLOTS, 2), jnp.int32) for _ in range(3)))
    return found | {"key": key}


def _batch() -> dict[str, Any]:
    names = ("place", "num_tokens", "num_own_blocks")
    found: dict[str, Any] = dict.fromkeys(names, jnp.zeros(SLOTS, jnp.int32))
    found |= dict.fromkeys(("now_us", "instance"), jnp.zeros((), jnp.int32))
    return found | {"is_running": jnp.ones(SLOTS, bool)}


def _contents() -> dict[str, Any]:
    names = ("now_us", "num_blocks", "num_used_blocks", "num_waiting_blocks", "num_running")
    found: dict[str, Any] = dict.fromkeys((*names, "instance"), jnp.zeros((), jnp.int32))
    return found | {"num_takers": jnp.zeros(SLOTS, jnp.int32)}
