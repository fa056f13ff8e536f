"""A limit on the rate of prompt tokens. Source: BLIS `sim/admission.go`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.exact import exact_quotient
from blis_jax.core.types import pytree
from blis_jax.lazy import jax, jnp
from blis_jax.policies.contract import GatewayContext, admission_policy
from blis_jax.policies.numbers import number

if TYPE_CHECKING:
    from jaxtyping import Array, Float

Decision = tuple["jax.Array", Any]


@pytree
class TokenBucketParams:
    """Numbers of the token bucket."""

    capacity: Float[Array, ""] = number(
        10000.0, "tokens", "prompt tokens the bucket holds",
        low=0, excludes_low=True, setting="token_bucket_capacity",
    )  # fmt: skip
    refill_per_s: Float[Array, ""] = number(
        1000.0, "tokens/s", "prompt tokens per second",
        low=0, excludes_low=True, setting="token_bucket_refill_rate",
    )  # fmt: skip


@pytree
class TokenBucketState:
    """Level of the bucket when it was last touched."""

    tokens: Float[Array, ""]
    refilled_us: Float[Array, ""]


def full_bucket(params: TokenBucketParams, shape: Any) -> TokenBucketState:
    """The bucket starts full."""
    del shape
    return TokenBucketState(params.capacity, jnp.zeros((), jnp.float64))


@admission_policy(TokenBucketParams, full_bucket)
def token_bucket(
    params: TokenBucketParams, state: TokenBucketState, context: GatewayContext
) -> Decision:
    """Admit while the bucket holds the prompt's tokens; it refills by elapsed time at each decision."""
    now = context.now_us.astype(jnp.float64)
    elapsed = now - state.refilled_us
    refill = exact_quotient(elapsed * params.refill_per_s, jnp.float64(1e6))
    tokens = jnp.where(
        elapsed > 0, jnp.minimum(params.capacity, state.tokens + refill), state.tokens
    )
    cost = context.request.input_len.astype(jnp.float64)
    is_admitted = tokens >= cost
    return is_admitted, TokenBucketState(jnp.where(is_admitted, tokens - cost, tokens), now)
