"""In what the profiles differ: defects of the reference, and what its later revision does in another way.

This module imports nothing of ours.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Defects:
    """Which defects of the reference are reproduced; each name is the one place where it is switched.

    All of them moved published numbers, so all are on unless the corrected profile is asked for.
    """

    overlapping_steps: bool = (
        True  # an empty batch leaves the instance idle before its step has ended
    )
    second_chain: bool = True  # a second queue event of a tick, or a drop, starts steps of its own
    rolled_back_leak: bool = True  # a roll-back forgets the blocks that the request held before
    revisited_victim: bool = True  # evicted and moved requests are visited at their old places
    stale_token_counts: bool = (
        True  # a member passed over counts with the tokens of an earlier step
    )
    double_last_latency: bool = True  # a completion records its last inter-token latency twice


REFERENCE_DEFECTS = Defects()
NO_DEFECTS = Defects(*(False,) * 6)
AUGUST_DEFECTS = Defects(True, *(False,) * 5)  # the others are gone from the revision of 2026-08


@dataclass(frozen=True)
class RevisionRules:
    """What a later revision of the reference does in another way, or vLLM; each name is one difference."""

    passes_over: bool = False  # a member without tokens in a step makes no progress in it
    refuses_whole: bool = False  # an allocation that fails changes nothing; found free blocks count
    restarts_preempted: bool = False  # a preempted request loses its first token and its latencies
    has_least_step: bool = False  # a step lasts at least 1 µs, one without tokens exactly 1 µs
    has_order: bool = False  # events of one microsecond come in order of kind and creation
    sees_old_loads: bool = False  # queues and batches are as old as the KV fields, in-flight is not
    reserves_decode: bool = (
        False  # a decode instance is chosen first, and holds KV from the transfer's start
    )
    turns_away: bool = False  # no instance is up for a request: it is turned away, it does not wait
    keeps_output: bool = (
        False  # vLLM: a preempted request keeps its tokens, and computes them again with its prompt
    )


FEBRUARY_RULES = RevisionRules()
AUGUST_RULES = RevisionRules(*(True,) * 8)
VLLM_RULES = RevisionRules(keeps_output=True)
