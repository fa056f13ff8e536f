"""Compiled forms of the further metrics."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blis_jax.metrics import further as _registered  # noqa: F401  (their names)
from blis_jax.metrics.on_device.figures import register_figure
from blis_jax.metrics.on_device.lane import LaneSelection, ratio
from blis_jax.metrics.on_device.ranked import NUM_CLASSES


def _reject_rate(selection: LaneSelection, code: int | None) -> jax.Array:
    place, counts = selection.place(code), selection.counts
    return ratio(counts["num_rejected"][place], counts["num_requests"][place], jnp.nan)


def _slo_miss_rate(selection: LaneSelection, code: int | None) -> jax.Array:
    return 1.0 - selection.attainment[selection.place(code)]


def _class_fairness(selection: LaneSelection, _: int | None) -> jax.Array:
    of_class = [selection.place(code) for code in range(NUM_CLASSES)]
    kept = selection.attainment[jnp.asarray(of_class)]
    is_present = ~jnp.isnan(kept)
    kept = jnp.where(is_present, kept, 0.0)
    squares = jnp.sum(is_present) * jnp.sum(jnp.square(kept))
    return ratio(jnp.sum(kept) ** 2, squares, 1.0)


def _num_preemptions(selection: LaneSelection, _: int | None) -> jax.Array:
    return jnp.sum(selection.run.instances.preemption_count)


def _worst_ttft_p99_ms(selection: LaneSelection, code: int | None) -> jax.Array:
    """Over the instances on which something completed, and the cluster."""
    requests, completed = selection.run.requests, selection.run.instances.completed_requests
    is_timed = selection.is_of[selection.place(code)] & (requests.ttft_us >= 0)
    instances = jnp.arange(len(completed), dtype=requests.instance.dtype)
    is_there = (requests.instance[None, :] == instances[:, None]) & (completed > 0)[:, None]
    groups = jnp.concatenate([is_timed[None, :], is_there & is_timed[None, :]])
    times = requests.ttft_us.astype(jnp.float64)
    ranked = jnp.sort(jnp.where(groups, times[None, :], jnp.inf), axis=1)
    count = jnp.sum(groups, axis=1)
    last = jnp.maximum(count - 1, 0)
    rank = 0.99 * last
    below = jnp.floor(rank).astype(count.dtype)
    low, high = (
        jnp.take_along_axis(ranked, at[:, None], axis=1)[:, 0]
        for at in (below, jnp.minimum(below + 1, last))
    )
    is_empty = count == 0
    # an empty group has infinity at both places
    gap = jnp.where(is_empty, 0.0, high - low)
    worst = jnp.max(jnp.where(is_empty, -jnp.inf, low + gap * (rank - below)))
    return jnp.where(jnp.isfinite(worst), worst / 1000, jnp.nan)


for _name, _compute in (
    ("reject_rate", _reject_rate),
    ("slo_miss_rate", _slo_miss_rate),
    ("class_fairness", _class_fairness),
    ("num_preemptions", _num_preemptions),
    ("worst_ttft_p99_ms", _worst_ttft_p99_ms),
):
    register_figure(_name, _compute)
