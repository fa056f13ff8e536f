"""A draft policy of one's own: as many drafts as give most tokens a second, by what was accepted so far.

    D=examples/drafts
    blis-jax compare k3=vllm:speculative_config=$D/eagle.json \
        "best=vllm:speculative_config=$D/eagle.json;draft_policy=$D/best_rate.py:best_rate" \
        --workload $D/workload.yaml --rate 20
"""

from typing import Any

import jax.numpy as jnp

from blis_jax.policies import draft_policy, number, pytree


@pytree
class StepCosts:
    """What a step costs, and how much of the past is believed; by default the fit of gpt-oss-120B on two H100."""

    step_us: Any = number(2120, "µs", "what every step costs, whatever its batch", low=0)
    token_us: Any = number(23, "µs/token", "what a decode token adds to a step", low=0)
    draft_us: Any = number(100, "µs", "the drafter's time for one draft of a batch", low=0)
    prior: Any = number(0.6, "share", "acceptance that is assumed at first", low=0, high=0.99)
    weight: Any = number(20, "drafts", "how many drafts that assumption counts for", low=1)


@draft_policy(StepCosts)
def best_rate(params, state, context):
    """Draft so many tokens that a step gives most tokens for its time, by the share accepted so far.

    A verification ends at its first rejected draft, or at none. So accepted ÷ (accepted + verifications) is the share
    of drafts that are accepted, a little too low.
    """
    accepted = context.num_accepted_tokens.astype(float) + params.weight * params.prior
    rejected = context.num_drafts.astype(float) + params.weight * (1 - params.prior)
    rate = accepted / (accepted + rejected)
    num = jnp.arange(33.0)  # 32 is the most that there may be
    tokens = (1 - rate ** (num + 1)) / (1 - rate)
    verified = context.num_decode.astype(float) * (num + 1)
    time_us = params.step_us + params.token_us * verified + params.draft_us * num
    is_allowed = num <= context.most_speculative_tokens.astype(float)
    per_us = jnp.where(is_allowed, tokens / time_us, 0.0)
    return jnp.argmax(per_us).astype(jnp.int32), state
