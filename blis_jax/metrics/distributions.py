"""Means and percentiles computed exactly as in BLIS, of plain and of weighted samples.

BLIS has one percentile formula for ms and one for other units; they differ in the last bit, so both are kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.core.arrays import namespace
from blis_jax.core.types import SLO_CLASSES
from blis_jax.lazy import jax, jnp, lax
from blis_jax.records.record import RunRecord, Status
from blis_jax.records.step_records import itl_values

if TYPE_CHECKING:
    from jaxtyping import Array, Bool, Float, Int, Shaped

    from blis_jax.records.record import InstanceRecords
    from blis_jax.records.splits import SplitRecords


@dataclass(frozen=True)
class Sample:
    """Numbers in ascending order."""

    values: Shaped[np.ndarray, "value"]

    @property
    def count(self) -> int:
        """Return the number of members."""
        return len(self.values)

    @property
    def total(self) -> float:
        """Return the sum of the members; exact for whole numbers below 2**53."""
        return float(self.values.sum())

    def member(self, index: int) -> float:
        """Return the member at one place of the ascending order."""
        return float(self.values[index])

    def neighbours(self, percent: float) -> tuple[float, float, float]:
        """Return the two members around rank percent/100·(n-1), and the fraction of the way between them, 0 to 1."""
        rank = percent / 100.0 * (self.count - 1)
        below = math.floor(rank)
        low = self.member(below)
        if below == rank:
            return low, low, 0.0
        return low, self.member(below + 1), rank - below


@dataclass(frozen=True)
class WeightedSample(Sample):
    """A multiset of numbers in ascending order; `ends[i]` counts its members up to value i."""

    ends: Int[np.ndarray, "value"]

    @property
    def count(self) -> int:
        """Return the number of members."""
        return int(self.ends[-1]) if len(self.ends) else 0

    @property
    def total(self) -> float:
        """Return the sum of the members; exact for whole numbers below 2**53."""
        return float(np.dot(self.values, np.diff(self.ends, prepend=0)))

    def member(self, index: int) -> float:
        """Return the member at one place of the ascending order."""
        return float(self.values[int(np.searchsorted(self.ends, index, side="right"))])


def recorded(
    values: Int[np.ndarray, "request"], is_chosen: Bool[np.ndarray, "request"] | bool = True
) -> Int[np.ndarray, "recorded"]:
    """Return the values that exist (not -1), of the chosen requests."""
    return values[(values >= 0) & is_chosen]


def sample_of(values: Shaped[np.ndarray, "value"]) -> Sample:
    """Return the sample that holds every value once."""
    return Sample(np.sort(values))


def weighted_sample(
    values: Shaped[np.ndarray, "value"], weights: Int[np.ndarray, "value"]
) -> Sample:
    """Return the sample that holds every value as often as its weight says."""
    present = weights > 0
    values, weights = values[present], weights[present]
    order = np.argsort(values)
    return WeightedSample(values[order], np.cumsum(weights[order], dtype=np.int64))


def itl_sample(record: RunRecord, instance: int | None = None) -> Sample:
    """Return every inter-token latency of every completed request, µs, of one instance or of all."""
    return weighted_sample(*itl_values(record, instance))


def mean(sample: Sample) -> float:
    """Return the mean, 0 for an empty sample, as in BLIS."""
    return sample.total / sample.count if sample.count else 0.0


def percentile(sample: Sample, percent: float) -> float:
    """Return a percentile in the sample's own unit, 0 for an empty sample."""
    if not sample.count:
        return 0.0
    low, high, fraction = sample.neighbours(percent)
    return low + fraction * (high - low)


def mean_ms(sample: Sample) -> float:
    """Return the mean of a sample in µs, in ms."""
    return mean(sample) / 1000


def percentile_ms(sample: Sample, percent: float) -> float:
    """Return a percentile, ms, of a sample in µs, rounded as in BLIS's printed results."""
    if not sample.count:
        return 0.0
    low, high, fraction = sample.neighbours(percent)
    return low / 1000 + (high - low) * fraction / 1000


def summary_us(sample: Sample) -> dict[str, float]:
    """Return mean, P50, P95, P99, least, greatest and count; zeros for an empty sample."""
    count = sample.count
    return {
        "mean": mean(sample),
        "p50": percentile(sample, 50),
        "p95": percentile(sample, 95),
        "p99": percentile(sample, 99),
        "min": sample.member(0) if count else 0.0,
        "max": sample.member(count - 1) if count else 0.0,
        "count": count,
    }


# --- whole requests of August's pools, and their parts on an instance -----------------------------


TIMES = ("e2e_us", "ttft_us", "sched_delay_us")


def times_of_parts(
    record: RunRecord, splits: SplitRecords, instance: int | None
) -> list[Int[np.ndarray, "recorded"]]:
    """Return E2E, TTFT and scheduling delay, µs, of whole requests; for an `instance`, of the parts that it served."""
    requests = record.requests
    if instance is None:
        return [recorded(getattr(requests, name), splits.is_ended) for name in TIMES]
    is_whole = (requests.instance == instance) & ~splits.is_split
    in_prefill = splits.is_split & (splits.prefill_instance == instance)
    in_decode = splits.is_split & (splits.decode_instance == instance)
    of_prefill = (splits.prefill_ttft_us, splits.prefill_ttft_us, splits.prefill_sched_delay_us)
    of_decode = (splits.decode_e2e_us, splits.decode_ttft_us, splits.decode_sched_delay_us)
    return [
        np.concatenate(
            [
                recorded(getattr(requests, name), is_whole),
                recorded(first, in_prefill),
                recorded(then, in_decode),
            ]
        )
        for name, first, then in zip(TIMES, of_prefill, of_decode, strict=True)
    ]


def is_reported(record: RunRecord) -> Bool[np.ndarray, "request"]:
    """Return which requests BLIS's cluster figures count: all, or with split requests those that ended."""
    splits = record.splits
    return np.ones(len(record.requests.status), bool) if splits is None else splits.is_ended


def is_listed(record: RunRecord) -> Bool[np.ndarray, "request"]:
    """Return which requests BLIS lists: those on an instance and not dropped; of split ones, the ended ones."""
    requests, splits = record.requests, record.splits
    is_kept = requests.status != Status.DROPPED
    if splits is not None:
        is_kept = np.where(splits.is_split, splits.is_ended, is_kept)
    return (requests.instance >= 0) & is_kept


def served_parts(record: RunRecord) -> tuple[Any, Any, Any]:
    """Return E2E, µs, instance and SLO class of all requests in order of arrival; -1 for no E2E or no instance.

    If pools split requests, every request has two entries in a row: its prefill part and its decode part.
    """
    requests, splits = record.requests, record.splits
    if splits is None:
        return requests.e2e_us, requests.instance, requests.slo_class
    xp = namespace(requests.status)
    of_prefill = xp.where(splits.is_split, splits.prefill_ttft_us, requests.e2e_us)
    on_prefill = xp.where(splits.is_split, splits.prefill_instance, requests.instance)
    e2e = xp.stack([of_prefill, splits.decode_e2e_us], axis=1).ravel()
    instance = xp.stack([on_prefill, splits.decode_instance], axis=1).ravel()
    return e2e, instance, xp.repeat(requests.slo_class, 2)


def rows_of(instance: int | None) -> slice:
    """Return the slice of tables of instances that holds one instance, or all of them."""
    return slice(None) if instance is None else slice(instance, instance + 1)


def total_of(table: InstanceRecords, name: str, instance: int | None = None) -> Any:
    """Return a counter of one instance, or its sum over all of them."""
    return getattr(table, name)[rows_of(instance)].sum()


def counted(record: RunRecord, name: str, instance: int | None) -> Any:
    """Return a counter of one instance or of the cluster, as BLIS counts it, which counts the parts of split requests.

    A prefill part counts as completed on its instance; a request whose KV finds no room is dropped by the cluster, not
    by the decode instance; a request in transfer between instances counts as running.
    """
    splits, total = record.splits, total_of(record.instances, name, instance)
    if splits is None:
        return total
    has_left, status = splits.transfer_at_us >= 0, record.requests.status
    is_between = has_left & (status == Status.IN_FLIGHT)
    has_completed = has_left & (splits.prefill_instance == instance)
    is_dropped = has_left & (status == Status.DROPPED) & (splits.decode_instance == instance)
    in_cluster, on_instance = (
        {"still_running": is_between.sum()},
        {"completed_requests": has_completed.sum(), "dropped_unservable": -is_dropped.sum()},
    )
    return total + (in_cluster if instance is None else on_instance).get(name, 0)


# --- in a compiled call, of all members and of every SLO class at once -----------------------------

# XLA sorts single whole numbers seven times as fast on a CPU as pairs or floats. So each value is packed with the place
# that it came from, and the sorted places give the values back exactly, slopes included.

NUM_CLASSES = len(SLO_CLASSES)
EVERYBODY = -1  # in place of the code of an SLO class: the group of all requests


class Ranked(NamedTuple):
    """Samples of several quantities, each in ascending order: of all requests that have it, then of each SLO class."""

    values: Float[Array, "quantity entry"]  # in the order given
    places: Int[Array, "quantity twice_entry"]  # of the members of all classes, then of each class
    starts: Int[Array, "quantity group"]  # where a group begins there
    counts: Int[Array, "quantity group"]  # members of a group

    def percentiles_ms(self, percents: Sequence[float]) -> Float[Array, "quantity group percent"]:
        """Return percentiles, ms, of samples in µs; NaN for an empty sample."""
        wanted = jnp.asarray(percents, jnp.float64)[None, None, :]
        low, high, fraction = self._around(wanted / 100.0)
        between = low / 1000 + (high - low) * fraction / 1000
        return jnp.where(self.counts[..., None] > 0, between, jnp.nan)

    def quantiles_ms(self, levels: Sequence[float]) -> Float[Array, "quantity group level"]:
        """Return quantiles, ms, of samples in µs, at levels from 0 to 1, interpolated linearly; NaN if empty."""
        low, high, fraction = self._around(jnp.asarray(levels, jnp.float64)[None, None, :])
        between = (low + (high - low) * fraction) / 1000
        return jnp.where(self.counts[..., None] > 0, between, jnp.nan)

    def largest_us(self, ranks: Sequence[int]) -> Float[Array, "quantity group rank"]:
        """Return the members at `ranks`, counted from 0 for the largest; NaN where a sample has too few members."""
        wanted = jnp.asarray(ranks)[None, None, :]
        at = self.starts[..., None] + self.counts[..., None] - 1 - wanted
        members = _at(self.values, _at(self.places, jnp.maximum(at, 0)[None]))[0]
        return jnp.where(wanted < self.counts[..., None], members, jnp.nan)

    def of(self, quantities: Sequence[int]) -> Ranked:
        """Return the samples of the chosen quantities, by index."""
        chosen = np.asarray(quantities)
        return Ranked(*(part[chosen] for part in self))

    def _around(self, levels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the two members around the rank of each level, and the fraction of the way between them."""
        last = jnp.maximum(self.counts[..., None] - 1, 0)
        ranks = levels * last
        below = jnp.floor(ranks).astype(last.dtype)
        at = self.starts[None, ..., None] + jnp.stack([below, jnp.minimum(below + 1, last)])
        low, high = _at(self.values, _at(self.places, at))
        return low, high, ranks - below


def _at(values: Float[Array, "quantity entry"], places: Int[Array, "side quantity ..."]) -> Any:
    """Return for each quantity the entries at the given places."""
    return jax.vmap(lambda entries, at: entries[at], in_axes=(0, 1), out_axes=1)(values, places)


def ranked(
    values: Float[Array, "quantity entry"] | Int[Array, "quantity entry"],
    is_member: Bool[Array, "quantity entry"],
    slo_class: Int[Array, "entry"],
    groups: Sequence[int],
) -> Ranked:
    """Sort the entries marked in `is_member`, for each group: an SLO class's code, or EVERYBODY."""
    size, bits = values.shape[1], _bits_for(values.shape[1])
    order = jax.vmap(order_of)(values, is_member)
    count = jnp.sum(is_member, axis=1, keepdims=True)
    zero = jnp.zeros_like(count)
    if not any(group != EVERYBODY for group in groups):
        return Ranked(values.astype(jnp.float64), order, zero, count)
    rank = lax.iota(jnp.int64, size)[None, :]
    group = jnp.where(rank < count, slo_class[order], NUM_CLASSES)
    by_class = jnp.sort((group << bits) | rank, axis=1) & (2**bits - 1)
    codes = jnp.arange(NUM_CLASSES)[None, :, None]
    counts = jnp.sum(is_member[:, None, :] & (slo_class[None, None, :] == codes), axis=2)
    starts = size + jnp.cumsum(counts, axis=1) - counts
    columns = np.asarray(groups) - EVERYBODY
    return Ranked(
        values=values.astype(jnp.float64),
        places=jnp.concatenate([order, jnp.take_along_axis(order, by_class, axis=1)], axis=1),
        starts=jnp.concatenate([zero, starts], axis=1)[:, columns],
        counts=jnp.concatenate([count, counts], axis=1)[:, columns],
    )


def order_of(
    values: Float[Array, "entry"] | Int[Array, "entry"], is_member: Bool[Array, "entry"]
) -> Int[Array, "entry"]:
    """Return the indices that sort `values` in ascending order, non-members last.

    The order is exact for whole numbers below 2^63 ÷ the number of entries; other values that agree to 1 part in
    2^52 ÷ entries count as equal.
    """
    bits = _bits_for(len(values))
    place = lax.iota(jnp.int64, len(values))
    values = lax.stop_gradient(values)
    if jnp.issubdtype(values.dtype, jnp.floating):
        raw = lax.bitcast_convert_type(values.astype(jnp.float64), jnp.int64)
        # negative floats ascend backwards
        raw = jnp.where(raw < 0, raw ^ jnp.int64(2**63 - 1), raw)
        key = raw & ~jnp.int64(2**bits - 1)
    else:
        key = values.astype(jnp.int64) << bits
    last = jnp.int64(2**63 - 1) & ~jnp.int64(2**bits - 1)
    return jnp.sort(jnp.where(is_member, key, last) | place) & (2**bits - 1)


def weighted_percentiles_ms(
    values: Float[Array, "entry"] | Int[Array, "entry"],
    weights: Int[Array, "entry"],
    percents: Sequence[float],
) -> tuple[jax.Array, jax.Array]:
    """Return percentiles and mean, ms, of `values` in µs, each repeated as often as its weight."""
    order = order_of(values, weights > 0)
    values, weights = values.astype(jnp.float64), jnp.maximum(weights, 0)
    ends = jnp.cumsum(weights[order])
    count = ends[-1]
    ranks = jnp.asarray(percents, jnp.float64) / 100.0 * (count - 1)
    below = jnp.floor(ranks).astype(jnp.int64)
    wanted = jnp.stack([below, jnp.minimum(below + 1, count - 1)])
    at = jnp.sum(ends[None, None, :] <= wanted[..., None], axis=-1)
    low, high = values[order[jnp.minimum(at, len(values) - 1)]]
    between = low / 1000 + (high - low) * (ranks - below) / 1000
    mean = jnp.sum(values * weights) / jnp.maximum(count, 1) / 1000
    return jnp.where(count > 0, between, jnp.nan), jnp.where(count > 0, mean, jnp.nan)


def _bits_for(size: int) -> int:
    return max(size - 1, 1).bit_length()
