"""What a latency model is told of the batch of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax.core.types import pytree

if TYPE_CHECKING:
    import jax
    from jaxtyping import Bool, Int


@pytree
class Members:
    """The members of a batch by slot; entries of slots that are in no batch are 0.

    Models take what they need; the rest costs nothing in a compiled program.
    """

    in_prefill: Bool[jax.Array, "slot"]  # when the step began
    new_tokens: Int[jax.Array, "slot"]  # counted in this step; in decode 1
    progress: Int[jax.Array, "slot"]  # tokens computed before; 0 in the step that schedules it
    context: Int[jax.Array, "slot"]  # tokens in its KV cache when the step ends
    in_step: Bool[jax.Array, "slot"]  # has new tokens
    in_decode: Bool[jax.Array, "slot"]  # has one new token after its prompt
    input_len: Int[jax.Array, "slot"]  # tokens of the whole prompt
    order: Int[jax.Array, "slot"]  # place in the batch: a smaller number comes earlier


@pytree
class StepBatch:
    """What a latency model sees of a batch.

    A member that the budget did not reach counts with the tokens of an earlier step, as in the
    reference; in decode only the totals know of that.
    """

    num_prefill_tokens: Int[jax.Array, ""]
    num_decode_tokens: Int[jax.Array, ""]
    members: Any = None  # Members where the model asks for them
