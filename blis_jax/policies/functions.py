"""The functions that a policy consists of, and what it declares, as types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypedDict, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from blis_jax.core.types import EngineShape
    from blis_jax.policies.contexts import Completion, GatewayContext

P = TypeVar("P", contravariant=True)
S = TypeVar("S")
C = TypeVar("C", contravariant=True)
D = TypeVar("D", covariant=True)


class DecideFn(Protocol[P, S, C, D]):
    """`(params, state, context) -> (decision, state)`, traced by JAX: pure, with fixed shapes.

    Decisions: admission a bool; a scorer float64[instance], cut to [0, 1], higher is better; routing and
    pickers an int32 index of an eligible instance; priority float64[slot], higher is more urgent; a
    scheduler `(value[slot], rank[slot])`, least value first, equal ones by least rank; a cluster policy a
    `ClusterChange`; a hand-over policy a `HandOver`; a victim policy float64[slot], least value first, of
    equals the last of the batch; an offload policy float64[block], what the CPU tier's room for it is worth, at 0 or
    below none.
    """

    def __call__(self, params: P, state: S, context: C, /) -> tuple[D, S]:
        """Decide, and say what is to be remembered."""
        ...


class StartFn(Protocol):
    """`(params, shape) -> state` before the first decision."""

    def __call__(self, params: Any, shape: EngineShape, /) -> Any:
        """The first state."""
        ...


class NextTimeFn(Protocol):
    """`(params, state) -> time in µs` at which a cluster policy acts next; infinity if never."""

    def __call__(self, params: Any, state: Any, /) -> Any:
        """The time, which must lie after the last change."""
        ...


class PoolFn(Protocol):
    """`(params, GatewayContext) -> Pool`: where a request may be routed to, and by which router."""

    def __call__(self, params: Any, context: GatewayContext, /) -> Any:
        """Where none of them is up, the request may go to any that is."""
        ...


class SplitsFn(Protocol):
    """`(params, GatewayContext, instance) -> bool`: whether the prompt is computed elsewhere than on this instance."""

    def __call__(self, params: Any, context: GatewayContext, instance: Any, /) -> Any:
        """The instance is the one that will make the tokens."""
        ...


class RoutedFn(Protocol):
    """`(params, state, context, instance) -> state`, called once a request has been routed."""

    def __call__(self, params: Any, state: Any, context: GatewayContext, instance: Any, /) -> Any:
        """The state after the decision, which the context led to."""
        ...


class HandsFn(Protocol):
    """`(params, context, instance) -> float64`: the number that the instance is handed with a request."""

    def __call__(self, params: Any, context: GatewayContext, instance: Any, /) -> Any:
        """The context is that of the decision, the instance the one decided on; of several policies the sum goes."""
        ...


class ObserveFn(Protocol):
    """`(params, state, completion) -> state`, called once per completed request, in order of time."""

    def __call__(self, params: Any, state: Any, completion: Completion, /) -> Any:
        """The state after the news."""
        ...


class PolicyParts(TypedDict, total=False):
    """What a policy says of itself beside its function and its memory: fields of `Policy` with these names."""

    reads_prefix_index: bool
    keeps_own_index: bool
    reads_cpu_tier: bool
    reads_cached_blocks: bool
    reads_prompt_key: bool
    is_random: bool | Callable[[Any], bool]
    next_time: NextTimeFn
    comes_last: NextTimeFn
    reads_fleet: bool
    reads_contents: bool
    reads_route: bool
    reads_draws: bool
    reads_caches: bool
    reads_prompt_time: bool
    reads_own_blocks: bool
    reads_demand: bool
    reads_outstanding: bool
    reads_handed: bool
    hands: HandsFn
    routed: RoutedFn
    pool: PoolFn
    splits: SplitsFn
