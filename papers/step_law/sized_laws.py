"""What trained-physics and roofline say of measured steps, with nothing fitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from blis_jax.core.step_batch import Members, StepBatch
from blis_jax.core.types import LAST
from blis_jax.latency.deployment import Deployment, gpu_description
from blis_jax.latency.model_files import model_description
from blis_jax.latency.registry import SIZED, find
from papers.step_law.steps import MeasuredSteps

GPU = "H100"  # of the servers; the file does not state it
SERVED: Mapping[str, str] = {  # models of the file: shipped descriptions
    "llama-2-70b": "meta-llama/llama-3.1-70b-instruct",  # differs in vocabulary and context alone
    "llama-2-70b-hf": "meta-llama/llama-3.1-70b-instruct",
    "codellama-34b": "codellama/codellama-34b-instruct-hf",
}


def predicted_us(steps: MeasuredSteps, name: str) -> np.ndarray | None:
    """The model's time of every step, whole µs; None for a served model without a description.

    The file knows no requests one by one: each has the mean context of its batch, and prompts share the new tokens.
    """
    if steps.model not in SERVED:
        return None
    import jax

    sizes = find(name).sizes
    assert sizes is not None and name in SIZED
    served = Deployment(
        model_description(SERVED[steps.model]), gpu_description(GPU), tp=steps.tp, dp=1
    )
    vector = np.array(sizes.vector(sizes.beta, served))
    with jax.enable_x64(True):
        times = jax.jit(jax.vmap(find(name).step_time, (None, 0)))(vector, _batches(steps))
    return np.floor(np.asarray(times))


def _batches(steps: MeasuredSteps) -> StepBatch:
    """The steps' batches `[step, slot]`, prompts first."""
    slot = np.arange(int(steps.requests.max()))[None, :]
    prefills, requests = steps.prefills[:, None], steps.requests[:, None]
    in_prefill: Any = slot < prefills
    in_step: Any = slot < requests
    context = np.round(steps.context / steps.requests)[:, None]
    share = np.floor(steps.new_tokens / np.maximum(steps.prefills, 1))[:, None]
    rest = steps.new_tokens[:, None] - share * prefills
    new = np.where(in_prefill, share + (slot < rest), in_step)
    progress = np.where(in_step, np.where(in_prefill, np.maximum(context - new, 0), context), 0)

    def whole(values: Any) -> Any:
        return np.broadcast_to(values, in_step.shape).astype(np.int32)

    members = Members(
        in_prefill=in_prefill,
        new_tokens=whole(new),
        progress=whole(progress),
        context=whole(progress + new),
        in_step=in_step,
        in_decode=in_step & ~in_prefill,
        input_len=whole(np.where(in_prefill, np.maximum(context, new), 0)),
        order=whole(np.where(in_step, slot, LAST)),
    )
    return StepBatch(
        whole(steps.new_tokens[:, None])[:, 0], whole(steps.decodes[:, None])[:, 0], members
    )
