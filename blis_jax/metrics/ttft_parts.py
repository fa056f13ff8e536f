"""What a class's time to first token is made of: its mean, its 99th percentile, and its slowest requests.

Every view is an average of whole requests, so that its parts add up to the number it explains.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from blis_jax.metrics.summaries import Selection
from blis_jax.results.records import TTFT_PARTS

if TYPE_CHECKING:
    from jaxtyping import Float

VIEWS = {
    "mean": "all requests with a first token",
    "p99": "the requests around the 99th percentile, weighted as the percentile weights them",
    "tail": "the requests at and above the 99th percentile",
}
PERCENT = 99
# what people are shown, each the sum of some of the parts
GROUPS: Mapping[str, tuple[str, ...]] = {
    "waiting": ("waiting",),
    "preempted service": ("preempted_service",),
    "compute": ("prefill_compute",),
    "chunk overhead": ("chunk_overhead",),
    "fixed": ("admission_delay", "routing_delay", "queueing_time", "output_processing"),
}


def ttft_parts_ms(selection: Selection) -> dict[str, list[float]]:
    """Per view of `VIEWS` the parts in the order of `TTFT_PARTS`, ms; empty without a first token.

    `p99` belongs to `ttft_p99_ms`: it is interpolated between the same two requests, and where several
    share a TTFT, between their averages.
    """
    requests = selection.record.requests
    chosen = selection.is_chosen & (requests.ttft_us >= 0)
    ttft, parts = requests.ttft_us[chosen], requests.ttft_parts_us[chosen].astype(np.float64)
    if not len(ttft):
        return {}
    low, high, fraction = selection.ttft.neighbours(PERCENT)
    below, above = (parts[ttft == value].mean(axis=0) for value in (low, high))
    tail = ttft >= low + fraction * (high - low)
    views = {
        "mean": parts.mean(axis=0),
        "p99": below + fraction * (above - below),
        "tail": parts[tail].mean(axis=0),
    }
    return {name: (values / 1000).tolist() for name, values in views.items()}


def grouped(parts: Float[np.ndarray, "... part"]) -> dict[str, Float[np.ndarray, "..."]]:
    """Parts in the order of `TTFT_PARTS` as the sums of `GROUPS`."""
    places = {name: place for place, name in enumerate(TTFT_PARTS)}
    return {
        group: parts[..., [places[name] for name in names]].sum(axis=-1)
        for group, names in GROUPS.items()
    }
