"""The record of the routing track, as a record to reproduce."""

from __future__ import annotations

from papers.record.definition import PaperRecord
from papers.routing_evolution.measures import E2E, TTFT, WORST_E2E, WORST_TTFT, track_figures

_TRAPS = (
    "How to read the track's numbers. (1) Its TTFT P99 is the largest of all printed blocks: every "
    "instance's and the cluster's. It is the P99 of the worst instance, of 60 to 250 requests, so close "
    "to that instance's slowest request. `ours` is that metric; the column behind it has the P99 of all "
    "requests of the cluster.",
    "(2) Its number of completed requests is the sum over all printed blocks. The cluster's block is one "
    "of them, so the sum is twice the truth: 1406 of 2,000 were 703 of 1,000.",
    "(3) Its runs are bursts: 500, 1,000 or 2,000 requests within 0.25 to 1 s, into a cluster that never "
    "reaches a steady state. At overload P99 grows with the number of requests, so numbers of runs with "
    "different counts or durations cannot be compared. `exact, of unlike runs` marks numbers that do.",
    "(4) Its cache hit rate is the mean over instances, whatever their traffic: a router that keeps one "
    "instance hot seems to have fewer hits (0.25) than round-robin (0.80).",
)

RECORD = PaperRecord(
    package="papers.routing_evolution",
    title="the routing record",
    seeds=(42, 123, 7777),
    measurement=track_figures(),
    beside={WORST_TTFT: TTFT, WORST_E2E: E2E, "printed_completed": "num_completed"},
    beside_heading="of the cluster",
    remarks=_TRAPS,
    figure_example="weight_ratios",
)
