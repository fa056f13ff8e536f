"""What a policy is: a pure function, its numbers, and what it keeps in mind.

Every policy has one form, `(params, state, context) -> (decision, state)`. The decorators below turn such a
function into a `Policy`, the value that `Policies`, commands and strategy files take. Nothing here
imports JAX, so a command can list policies before it computes anything.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from blis_jax.core.types import EngineShape, pytree
from blis_jax.errors import ConfigError
from blis_jax.policies.contexts import (
    ClusterChange,
    ClusterContext,
    Completion,
    GatewayContext,
    HandOver,
    HandOverContext,
    OffloadContext,
    PickerContext,
    Pool,
    QueueContext,
    VictimContext,
)
from blis_jax.policies.functions import (
    DecideFn,
    HandsFn,
    NextTimeFn,
    ObserveFn,
    PolicyParts,
    PoolFn,
    RoutedFn,
    SplitsFn,
    StartFn,
)
from blis_jax.policies.numbers import checked, numbers_of
from blis_jax.policies.unasked import seen_by, unasked

if TYPE_CHECKING:
    import jax

    Key = jax.Array

__all__ = [
    "DECORATORS",
    "KINDS",
    "ClusterChange",
    "ClusterContext",
    "Completion",
    "GatewayContext",
    "HandOver",
    "HandOverContext",
    "NoParams",
    "NoState",
    "OffloadContext",
    "PickerContext",
    "Policies",
    "Policy",
    "Pool",
    "QueueContext",
    "VictimContext",
    "admission_policy",
    "cluster_policy",
    "hand_over_policy",
    "no_state",
    "offload_policy",
    "picker",
    "priority_policy",
    "routing_policy",
    "scheduler",
    "scorer",
    "victim_policy",
]


@pytree
class NoParams:
    """A policy without numbers."""


@pytree
class NoState:
    """A policy without memory."""


def no_state(params: Any, shape: EngineShape) -> NoState:
    """Initial state of a policy without memory."""
    del params, shape
    return NoState()


# --- a policy as a value --------------------------------------------------------------------------

KINDS = (
    "admission",
    "routing",
    "scorer",
    "picker",
    "priority",
    "scheduler",
    "cluster",
    "hand_over",
    "victim",
    "offload",
)


@dataclass(frozen=True)
class Policy:
    """A policy as a value: hashable, and the same for JAX whatever its numbers are."""

    kind: str  # of KINDS
    decide: DecideFn[Any, Any, Any, Any]
    params: type = NoParams
    start: StartFn = no_state
    observe: ObserveFn | None = None
    reads_prefix_index: bool = False  # looks at snapshots.prefix_match_blocks
    keeps_own_index: bool = (
        False  # in BLIS, routings fill it whatever feeds that of prefix-affinity
    )
    reads_cpu_tier: bool = False  # looks at snapshots.pending_transfer_us or .kv_thrashing_rate
    reads_cached_blocks: bool = False  # looks at context.num_cached_blocks
    reads_prompt_key: bool = False  # keeps something for every prompt key, `[shape.num_keys]`
    # draws from `context.key` or `context.run_key`; a function says it of the policy's numbers
    is_random: bool | Callable[[Any], bool] = False
    next_time: NextTimeFn | None = None  # of a cluster policy: when it acts
    comes_last: NextTimeFn | None = (
        None  # whether behind all else that the gateway does at that time
    )
    reads_fleet: bool = False  # of a cluster policy: looks at context.fleet
    reads_contents: bool = False  # looks at context.contents
    reads_route: bool = False  # of an admission policy: looks at context.picked
    reads_draws: bool = False  # looks at context.draws
    reads_caches: bool = False  # looks at snapshots.cached_prompt_blocks
    reads_prompt_time: bool = False  # looks at snapshots.prompt_us
    reads_own_blocks: bool = False  # of a victim policy: looks at context.num_own_blocks
    reads_demand: bool = False  # of an offload policy: looks at what only February's context has
    reads_outstanding: bool = False  # looks at context.outstanding
    reads_handed: bool = False  # looks at context.handed
    hands: HandsFn | None = None  # of a routing policy or scorer: what goes along with a request
    routed: RoutedFn | None = None  # of a scorer: told where the request goes
    pool: PoolFn | None = None  # of a hand-over policy: where requests may be routed
    splits: SplitsFn | None = None  # of a hand-over policy of blis-2026-08, which asks this first
    numbers: tuple[tuple[str, float], ...] = ()  # given ones; the others have their defaults

    @property
    def name(self) -> str:
        """The function's name, for messages."""
        return getattr(self.decide, "__name__", repr(self.decide))

    @property
    def may_draw(self) -> bool:
        """Whether the policy, with the numbers that it has, says that it draws."""
        is_random = self.is_random(self.values()) if callable(self.is_random) else self.is_random
        return bool(is_random) or self.reads_draws

    def ask(self, params: Any, state: Any, context: Any) -> tuple[Any, Any]:
        """Decide as the engine asks it to: with the signals that the policy has declared, and no other."""
        return self.decide(params, state, seen_by(self, context))

    def begin(self, params: Any, shape: EngineShape) -> Any:
        """The first state; a number of prompt keys is there only for a policy that has declared it."""
        if not self.reads_prompt_key:
            missing: Any = unasked(self, "shape.num_keys", "reads_prompt_key")
            shape = dataclasses.replace(shape, num_keys=missing)
        return self.start(params, shape)

    def with_numbers(self, **numbers: float) -> Policy:
        """The same policy with some numbers given.

        Raises:
            ConfigError: the policy has no such number, or the value is not allowed.
        """
        given = checked(self.params, numbers, f"{self.kind} policy {self.name}")
        return dataclasses.replace(
            self, numbers=tuple(sorted((dict(self.numbers) | given).items()))
        )

    def values(self) -> Any:
        """The params with all numbers, as float64 scalars."""
        defaults = {name: one.default for name, one in numbers_of(self.params).items()}
        values = {
            name: np.float64(value) for name, value in (defaults | dict(self.numbers)).items()
        }
        return self.params(**values)

    def function(self) -> Policy:
        """The policy without its given numbers: what a compiled program depends on."""
        return dataclasses.replace(self, numbers=()) if self.numbers else self


class MakesPolicy:
    """A decorator: turns a function of the form `DecideFn` into a `Policy` of one kind."""

    def __init__(self, kind: str, name: str, form: str) -> None:
        self.kind = kind
        self.__name__ = name
        self.__doc__ = f"Makes a policy of `{form}`."

    def __call__(
        self,
        params: type = NoParams,
        start: StartFn = no_state,
        observe: ObserveFn | None = None,
        **declared: Unpack[PolicyParts],
    ) -> Callable[[DecideFn[Any, Any, Any, Any]], Policy]:
        """What decorates the function; the arguments are the fields of `Policy` with these names.

        Raises:
            ConfigError: a field of `params` is not declared with `number`, a cluster policy does not say
                when it acts, a policy that hands nothing over has a pool, or a victim or offload policy has a
                memory or draws.
        """
        numbers_of(params)
        said = {name for name, value in declared.items() if value is not None}
        if ("next_time" in said) != (self.kind == "cluster"):
            raise ConfigError(
                "next_time=… says when a cluster policy acts: a cluster policy needs it, no other has it"
            )
        remembers = start is not no_state or observe is not None
        if self.kind in _WITHOUT_MEMORY and (remembers or declared.get("is_random")):
            article = "an" if self.kind == "offload" else "a"
            raise ConfigError(
                f"{article} {self.kind} policy has no memory and no draws; "
                f"leave start, observe and is_random out of {self.__name__}()"
            )
        for name, (kinds, words) in _OF_SOME_KINDS.items():
            if name in said and self.kind not in kinds:
                raise ConfigError(f"{name}=… is for {words}; leave it out of {self.__name__}()")

        def decorate(decide: DecideFn[Any, Any, Any, Any]) -> Policy:
            """The policy that decides with `decide`; nothing is called or traced yet."""
            return Policy(self.kind, decide, params, start, observe, **declared)

        return decorate


_WITHOUT_MEMORY = ("victim", "offload")
_OF_SOME_KINDS = {
    "pool": (("hand_over",), "hand-over policies"),
    "comes_last": (("cluster",), "cluster policies"),
    "reads_fleet": (("cluster",), "cluster policies"),
    "reads_prefix_index": (
        ("admission", "routing", "scorer", "hand_over"),
        "policies that are asked about one request at the gateway",
    ),
    "routed": (("scorer",), "scorers"),
    "hands": (("routing", "scorer"), "routing policies and scorers"),
}
_AT_GATEWAY = "(params, state, GatewayContext)"
_IN_QUEUE = "(params, state, QueueContext)"
admission_policy = MakesPolicy(
    "admission", "admission_policy", f"{_AT_GATEWAY} -> (is_admitted, state)"
)
routing_policy = MakesPolicy("routing", "routing_policy", f"{_AT_GATEWAY} -> (instance, state)")
scorer = MakesPolicy("scorer", "scorer", f"{_AT_GATEWAY} -> (float64[instance], state)")
picker = MakesPolicy("picker", "picker", "(params, state, PickerContext) -> (instance, state)")
priority_policy = MakesPolicy(
    "priority", "priority_policy", f"{_IN_QUEUE} -> (float64[slot], state)"
)
scheduler = MakesPolicy(
    "scheduler", "scheduler", f"{_IN_QUEUE} -> ((value[slot], rank[slot]), state)"
)

cluster_policy = MakesPolicy(
    "cluster", "cluster_policy", "(params, state, ClusterContext) -> (ClusterChange, state)"
)
hand_over_policy = MakesPolicy(
    "hand_over", "hand_over_policy", "(params, state, HandOverContext) -> (HandOver, state)"
)
victim_policy = MakesPolicy(
    "victim", "victim_policy", "(params, state, VictimContext) -> (float64[slot], state)"
)
offload_policy = MakesPolicy(
    "offload", "offload_policy", "(params, state, OffloadContext) -> (float64[block], state)"
)


@dataclass(frozen=True)
class Policies:
    """Policies to use in place of those that a `ClusterConfig` names; None leaves the config's.

    Attributes:
        admission: whether a request is let in.
        routing: which instance a request gets.
        scorers: how good an instance is: policies, or pairs of a policy and its weight above 0 (1 if not given).
        picker: which instance is taken by the scores. Scorers or a picker without `routing` mean weighted routing.
        priority: how urgent a waiting request is.
        scheduler: which waiting request comes first.
        cluster: which instances are up; None means that all stay up.
        hand_over: which requests move on with their KV; None means that they stay.
        victim: which running request is evicted when KV blocks run out; None means the configuration's.
        offload: what goes to the CPU tier, and what gives way there; None means the configuration's.
        decode_routing: which instance a request gets in the decode pool; as `routing` if nothing is said of it.
        decode_scorers: likewise, as `scorers`.
        decode_picker: likewise, as `picker`.

    Raises:
        ConfigError: a policy is of another kind than its field, or a weight is not above 0.
    """

    admission: Policy | None = None
    routing: Policy | None = None
    scorers: tuple[tuple[Policy, float], ...] | None = None
    picker: Policy | None = None
    priority: Policy | None = None
    scheduler: Policy | None = None
    cluster: Policy | None = None  # instances go down and come up; None: they stay up
    hand_over: Policy | None = None  # requests move on with their KV; None: they stay
    victim: Policy | None = None  # who is evicted; None: as BLIS does
    offload: Policy | None = None  # what goes to the CPU tier; None: as BLIS does
    decode_routing: Policy | None = None
    decode_scorers: tuple[tuple[Policy, float], ...] | None = None
    decode_picker: Policy | None = None

    def __post_init__(self) -> None:
        for field in ("scorers", "decode_scorers"):
            given: Any = getattr(self, field)
            if given is not None:
                pairs = [one if isinstance(one, tuple) else (one, 1.0) for one in given]
                object.__setattr__(self, field, tuple(pairs))
        for field, kind in _FIELD_KINDS:
            given = getattr(self, field)
            for one in [pair[0] for pair in given or ()] if kind == "scorer" else [given]:
                _check_kind(field, kind, one)
            for one, weight in given or () if kind == "scorer" else ():
                if not (np.isfinite(weight) and weight > 0):
                    raise ConfigError(
                        f"{field}: the weight of {one.name} is {weight}; give one above 0"
                    )


_FIELD_KINDS = (
    *((kind + "s" * (kind == "scorer"), kind) for kind in KINDS),
    ("decode_routing", "routing"),
    ("decode_scorers", "scorer"),
    ("decode_picker", "picker"),
)


def _check_kind(field: str, kind: str, given: Any) -> None:
    if given is None or (isinstance(given, Policy) and given.kind == kind):
        return
    what = f"a policy of kind {given.kind}" if isinstance(given, Policy) else repr(given)
    raise ConfigError(
        f"policies.{field} is {what}; give a function decorated with "
        f"@{DECORATORS[kind].__name__}() of blis_jax.policies"
    )


DECORATORS: dict[str, MakesPolicy] = {
    "admission": admission_policy,
    "routing": routing_policy,
    "scorer": scorer,
    "picker": picker,
    "priority": priority_policy,
    "scheduler": scheduler,
    "cluster": cluster_policy,
    "hand_over": hand_over_policy,
    "victim": victim_policy,
    "offload": offload_policy,
}
