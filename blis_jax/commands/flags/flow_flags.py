"""The options of flow control, the queue of the gateway, as BLIS names them."""

from __future__ import annotations

from blis_jax.commands.cli import Flag, number, truth, whole

FLOW_FLAGS = (
    Flag("flow-control", truth, False, "BOOL", "admitted requests wait in a queue of the gateway"),
    Flag(
        "saturation-detector",
        str,
        "never",
        "NAME",
        "when the gateway's queue holds requests back: never, utilization or concurrency",
    ),
    Flag(
        "queue-depth-threshold",
        number,
        5.0,
        "X",
        "utilization: wait queue of an instance that counts as full",
    ),
    Flag(
        "kv-cache-util-threshold",
        number,
        0.8,
        "X",
        "utilization: share of KV blocks in use that counts as full",
    ),
    Flag(
        "max-concurrency",
        whole,
        100,
        "N",
        "concurrency: requests at an instance that count as full",
    ),
    Flag(
        "usage-limit-threshold",
        number,
        1.0,
        "X",
        "saturation (above 0, at most 1) that holds back the least urgent band; the most urgent one has 1",
    ),
    Flag(
        "dispatch-order",
        str,
        "fifo",
        "NAME",
        "fifo or priority, which both serve urgent classes first, or slo-deadline inside a class and tenant",
    ),
    Flag(
        "slo-targets",
        str,
        "",
        "LIST",
        "slo-deadline: µs from the gateway's queue to a class's deadline, such as critical=100000,standard=500000",
    ),
    Flag(
        "fairness-policy",
        str,
        "global-strict",
        "NAME",
        "between tenants of one class: global-strict, the oldest first, or round-robin",
    ),
    Flag(
        "max-gateway-queue-depth",
        whole,
        0,
        "N",
        "most requests in the gateway's queue; 0: no limit",
    ),
    Flag(
        "per-band-capacity",
        whole,
        0,
        "N",
        "most requests of one priority in the gateway's queue; 0: no limit",
    ),
    Flag(
        "queue-shedding",
        truth,
        False,
        "BOOL",
        "a full gateway queue gives up its least urgent sheddable request for a more urgent one",
    ),
    Flag(
        "request-ttl",
        whole,
        0,
        "US",
        "µs after which a request leaves the gateway's queue for good; 0: never",
    ),
    Flag(
        "dispatch-tick-interval",
        whole,
        1000,
        "US",
        "µs between two looks at the gateway's queue while requests wait; 0: 1000",
    ),
    Flag(
        "in-flight-eviction",
        truth,
        False,
        "BOOL",
        "saturated instances give up sheddable requests while a more urgent one waits at the gateway",
    ),
)
