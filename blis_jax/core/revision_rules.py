"""How the profiles differ: defects of the reference, and rules that its later revision changed.

This module imports no other module of the package but `lazy`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from blis_jax.lazy import jnp

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True)
class Defects:
    """Switches of the reference's defects; a defect is reproduced only if its switch is set."""

    # an empty batch leaves the instance idle before its step has ended
    overlapping_steps: bool = False
    # a second queue event of a tick, or a drop, starts steps of its own
    second_chain: bool = False
    # a roll-back forgets the blocks that the request held before
    rolled_back_leak: bool = False
    # evicted and moved requests are visited at their old places
    revisited_victim: bool = False
    # a member passed over counts with the tokens of an earlier step
    stale_token_counts: bool = False
    # a completion records its last inter-token latency twice
    double_last_latency: bool = False
    # a reload that finds more than was asked for stops the run
    overrunning_reload: bool = False


# All of them moved published numbers, so February's profile has them all.
REFERENCE_DEFECTS = Defects(
    overlapping_steps=True,
    second_chain=True,
    rolled_back_leak=True,
    revisited_victim=True,
    stale_token_counts=True,
    double_last_latency=True,
    overrunning_reload=True,
)
NO_DEFECTS = Defects()
AUGUST_DEFECTS = Defects(overlapping_steps=True)  # the others are gone from the revision of 2026-08


def _at_least_one(time: jax.Array, prefill: jax.Array, decode: jax.Array) -> jax.Array:
    return jnp.where(prefill + decode > 0, jnp.maximum(time, 1.0), 1.0)


@dataclass(frozen=True)
class RevisionRules:
    """Hold the rules in which BLIS's later revision, or vLLM, differs: functions, and marks that select others.

    Memory, the sources and the pools read the marks when a program is built.
    """

    # a member without tokens in a step makes no progress in it
    passes_over: bool = False
    # an allocation that fails changes nothing; found free blocks count
    refuses_whole: bool = False
    # a preempted request loses its first token and its latencies
    restarts_preempted: bool = False
    # events of one microsecond come in order of kind and creation
    has_order: bool = False
    # a decode instance is chosen first, and holds KV from the transfer's start
    reserves_decode: bool = False
    # no instance is up for a request: it is turned away, it does not wait
    turns_away: bool = False
    # vLLM: a preempted request keeps its tokens, and computes them again with its prompt
    keeps_output: bool = False
    # how much of so many tokens may be found in the cache
    findable: Callable[[jax.Array], jax.Array] = lambda tokens: tokens
    # the time of a step of so many prefill and decode tokens, float64 µs, that the latency model says
    step_time: Callable[[jax.Array, jax.Array, jax.Array], jax.Array] = (
        lambda time, prefill, decode: time
    )
    # what the router has sent to each instance and not heard of, of its pending requests and its load
    pending: Callable[[jax.Array, jax.Array], jax.Array] = lambda pending, load: pending
    # which of the two a detector that counts requests takes
    in_flight: Callable[[jax.Array, jax.Array], jax.Array] = lambda pending, load: load


FEBRUARY_RULES = RevisionRules()
AUGUST_RULES = RevisionRules(
    passes_over=True,
    refuses_whole=True,
    restarts_preempted=True,
    has_order=True,
    reserves_decode=True,
    turns_away=True,
    # a step lasts at least 1 µs, one without tokens exactly 1 µs
    step_time=_at_least_one,
    # queues and batches are as old as the KV fields; all that the router has sent it knows at once
    pending=lambda pending, load: load,
    in_flight=lambda pending, load: pending,
)
# the last token is computed though it is cached, because the next one follows from it
VLLM_RULES = RevisionRules(keeps_output=True, findable=lambda tokens: tokens - 1)
