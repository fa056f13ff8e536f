"""In what the profiles differ: defects of the reference, and what its later revision does in another way.

This module imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defects:
    """Which defects of the reference are reproduced; each name is the one place where it is switched."""

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


@dataclass(frozen=True)
class RevisionRules:
    """What a later revision of the reference does in another way, or vLLM; each name is one difference."""

    # a member without tokens in a step makes no progress in it
    passes_over: bool = False
    # an allocation that fails changes nothing; found free blocks count
    refuses_whole: bool = False
    # a preempted request loses its first token and its latencies
    restarts_preempted: bool = False
    # a step lasts at least 1 µs, one without tokens exactly 1 µs
    has_least_step: bool = False
    # events of one microsecond come in order of kind and creation
    has_order: bool = False
    # queues and batches are as old as the KV fields, in-flight is not
    sees_old_loads: bool = False
    # a decode instance is chosen first, and holds KV from the transfer's start
    reserves_decode: bool = False
    # no instance is up for a request: it is turned away, it does not wait
    turns_away: bool = False
    # vLLM: a preempted request keeps its tokens, and computes them again with its prompt
    keeps_output: bool = False


FEBRUARY_RULES = RevisionRules()
AUGUST_RULES = RevisionRules(
    passes_over=True,
    refuses_whole=True,
    restarts_preempted=True,
    has_least_step=True,
    has_order=True,
    sees_old_loads=True,
    reserves_decode=True,
    turns_away=True,
)
VLLM_RULES = RevisionRules(keeps_output=True)
