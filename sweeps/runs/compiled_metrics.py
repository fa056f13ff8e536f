"""Compiled forms of the metrics that only searches ask for."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from blis_jax.results.metrics.on_device.figures import register_figure
from blis_jax.results.metrics.on_device.lane import LaneSelection, ratio
from blis_jax.results.metrics.on_device.ranked import NUM_CLASSES
from sweeps.runs import metrics as _registered  # noqa: F401  (their names)


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


for _name, _compute in (
    ("reject_rate", _reject_rate),
    ("slo_miss_rate", _slo_miss_rate),
    ("class_fairness", _class_fairness),
    ("num_preemptions", _num_preemptions),
):
    register_figure(_name, _compute)
