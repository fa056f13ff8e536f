"""The codes for how a run ends."""

from __future__ import annotations

import enum


class Outcome(enum.IntEnum):
    """How a run ended; each row of a batch carries its own code, and nothing is raised."""

    COMPLETED = 0
    HORIZON = 1
    SLOTS_FULL = 2
    ITERATIONS_EXHAUSTED = 3
    KV_CHECK_TRIPPED = 4
    OPEN_TIE = 5
    LIVELOCK = 6
    CLOCK_OVERFLOW = 7
    COPIES_FULL = 8
    CHAINS_FULL = 9
    ROUTER_INDEX_FULL = 10
    LOG_FULL = 11
    WORKLOAD_SHORT = 12
    LISTS_FULL = 13
    RING_FULL = 14
    EVICTIONS_FULL = 15
    REFERENCE_CRASH = 16
    NODES_FULL = 17
    NO_SUCH_INSTANCE = 18
    ROUTINGS_FULL = 19
    DRAWS_EXHAUSTED = 20
    INSTANCES_FULL = 21
    CHANGES_FULL = 22
    OTHER_KIND = 23

    @property
    def sentence(self) -> str:
        """Return a sentence that says what the code means."""
        return _SENTENCES[self]

    @property
    def advice(self) -> str:
        """Return a sentence that says what to do about a run without results."""
        return _WHAT_TO_DO.get(
            self, "lower the load or give more memory; the limit is the simulator's"
        )


_SENTENCES = {
    Outcome.COMPLETED: "every admitted request completed",
    Outcome.HORIZON: "the horizon was reached with requests still in the system",
    Outcome.SLOTS_FULL: "an instance held more requests than it has slots; raise --slots",
    Outcome.ITERATIONS_EXHAUSTED: "the run needed more scan steps than allowed",
    Outcome.KV_CHECK_TRIPPED: "the KV cache came under pressure, which the memory model without eviction cannot follow",
    Outcome.OPEN_TIE: "events of one microsecond on one instance could not be put in the reference's order",
    Outcome.LIVELOCK: "an instance made 10,000 steps without a completion or progress, and no horizon ends them "
    "(or it takes more than 4 million records of steps to come to it)",
    Outcome.CLOCK_OVERFLOW: "simulated time left the range of the clock; use a 64-bit clock",
    Outcome.COPIES_FULL: "more copies of one shared block were alive than the table holds",
    Outcome.CHAINS_FULL: "more step chains ran on one instance than the table holds",
    Outcome.ROUTER_INDEX_FULL: "an instance's router index went past its capacity without eviction on",
    Outcome.DRAWS_EXHAUSTED: "the router broke more ties, or storage made more transfers with jitter, than "
    "the reference's stream was drawn for",
    Outcome.INSTANCES_FULL: "an autoscaler made more instances than the table has rows for",
    Outcome.OTHER_KIND: "the autoscaler made an instance of another kind of GPU than the cheapest that was there at "
    "the beginning, whose KV blocks its row has; begin with instances of one kind",
    Outcome.CHANGES_FULL: "an autoscaler made more decisions than its table holds",
    Outcome.ROUTINGS_FULL: "the router's prefix index was told more often, by requests routed again or by KV caches, "
    "than its log holds",
    Outcome.LOG_FULL: "the run made more steps than the step log holds",
    Outcome.LISTS_FULL: "a request held more KV blocks than its list has room for",
    Outcome.NODES_FULL: "requests share longer contents than the tables of shared blocks hold",
    Outcome.NO_SUCH_INSTANCE: "the routing policy chose an instance that is not active; "
    "it must return the index of one whose `snapshots.is_active` is true",
    Outcome.RING_FULL: "an instance's list of free KV blocks ran over",
    Outcome.EVICTIONS_FULL: "the run preempted more requests than the record of preemptions holds",
    Outcome.REFERENCE_CRASH: "the reference stops here with an index out of range: a reload found more of a "
    "prompt than was asked for, or a preempted request was computed beyond its prompt",
    Outcome.WORKLOAD_SHORT: "the generator drew fewer requests of a client than the workload needs",
}

_WHAT_TO_DO = {
    Outcome.LIVELOCK: "the run would go on for ever; give more KV blocks, fewer requests a "
    "second, or another preemption",
    Outcome.REFERENCE_CRASH: "BLIS itself crashes here; leave the CPU KV tier out, give more KV "
    "blocks, or simulate without its defects (--corrected, of an arm corrected=true)",
    Outcome.ITERATIONS_EXHAUSTED: "give fewer requests",
    Outcome.OPEN_TIE: "take another seed for this configuration",
    Outcome.CLOCK_OVERFLOW: "give fewer requests or a higher rate",
    Outcome.NO_SUCH_INSTANCE: "mend the routing policy, or take another one",
    Outcome.WORKLOAD_SHORT: "give fewer requests, or longer windows of the clients",
}


WHOLE = (Outcome.COMPLETED, Outcome.HORIZON)  # runs that came to their end, so they have figures
WHOLE_NAMES = tuple(outcome.name for outcome in WHOLE)  # as records have them
