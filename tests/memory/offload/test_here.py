"""Transfers of one tier against times worked out by hand: who is served by whom, when, and how fast."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.memory.offload.here import advanced, next_end, submitted
from blis_jax.tables.offload import Count, Jobs, JobState, OffloadParams

ENTRIES = 6  # of the CPU tier; transfers to storage come first, then those from it


@pytest.fixture(autouse=True)
def in_64_bits() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def numbers(**changes: Any) -> OffloadParams:
    """One reader and one writer; 10 µs, then 2 bytes/µs from storage and 1 to it, of blocks of 100 bytes."""
    values: dict[str, Any] = {
        "block_bytes": 100.0,
        "is_prompt_only": True,
        "read_bandwidth": [2.0],
        "write_bandwidth": [1.0],
        "base_us": [10.0],
        "depth": [1.0],
        "fraction": [1.0],
        "jitter": [0.0],
        "num_readers": np.int32([1]),
        "num_writers": np.int32([1]),
        "normals": [0.0],
    }
    return OffloadParams(**{name: jnp.asarray(one) for name, one in (values | changes).items()})


def station(tier: OffloadParams, jobs: list[tuple[int, int, int]]) -> tuple[Jobs, Any]:
    """Transfers submitted in turn: their place in the table, blocks, and time."""
    whole = jnp.zeros(2 * ENTRIES, jnp.int32)
    long, of = whole.astype(jnp.int64), jnp.arange(2 * ENTRIES, dtype=jnp.int32) // ENTRIES
    made = Jobs(whole, whole, of, whole, whole, whole, long, long, whole.astype(jnp.float64))
    counts = jnp.zeros(len(Count), jnp.int32)
    for at, blocks, now in jobs:
        made, counts = submitted(
            tier, made, counts, jnp.int32(at), jnp.int32(0), jnp.int32(blocks), jnp.int64(now),
            jnp.array(True),
        )  # fmt: skip
    return made, counts


def after(tier: OffloadParams, jobs: list[tuple[int, int, int]], now: int) -> tuple[Jobs, Any]:
    """The same once the clock has come to `now`."""
    return advanced(tier, *station(tier, jobs), jnp.int64(now), jnp.array(True))


def test_a_free_thread_takes_a_transfer_of_either_direction_and_the_third_one_waits():
    jobs, _ = station(numbers(), [(0, 1, 0), (1, 1, 0), (2, 1, 0)])
    assert jobs.status[:3].tolist() == [JobState.SERVED, JobState.SERVED, JobState.QUEUED]
    assert jobs.ends[:2].tolist() == [110, 110]
    assert jobs.by_writer[:2].tolist() == [0, 1]


def test_a_thread_prefers_its_own_direction():
    read = ENTRIES + 3
    queue = [
        (0, 1, 0),
        (1, 2, 0),
        (2, 1, 1),
        (read, 1, 2),
    ]  # the first two are served until 110 and 210
    jobs, counts = after(numbers(), queue, 110)
    assert jobs.status[read] == JobState.SERVED  # by the reader, ahead of the write that came first
    assert jobs.ends[read] == 110 + 10 + 50
    assert jobs.status[2] == JobState.QUEUED
    assert counts[Count.DONE] == 1


def test_what_ends_starts_the_next_one_at_its_end_even_if_nobody_looks():
    jobs, counts = after(
        numbers(num_writers=np.int32([0])), [(0, 1, 0), (1, 1, 5), (2, 1, 6)], 1000
    )
    assert counts[Count.DONE] == 3
    assert jobs.done_at[:3].tolist() == [0, 1, 2]
    assert jobs.ends[:3].tolist() == [110, 220, 330]


def test_bandwidth_grows_with_the_transfers_that_are_served():
    ramp = numbers(depth=[3.0], fraction=[0.5], num_readers=np.int32([4]))
    jobs, _ = station(ramp, [(0, 1, 0), (1, 1, 0), (2, 1, 0)])
    assert jobs.ends[:3].tolist() == [10 + 200, 10 + 133, 10 + 100]


def test_a_factor_is_drawn_at_submission_and_halves_are_rounded_up():
    drawn = numbers(jitter=[0.5], normals=[1.0, -9.0], base_us=[11.0])
    jobs, counts = station(drawn, [(0, 1, 0), (1, 1, 0)])
    assert counts[Count.DRAWS] == 2
    assert jobs.ends[:2].tolist() == [167, 6]  # 111 × 1.5 = 166.5, and 111 × 0.05 = 5.55


def test_nothing_is_due_where_nothing_is_submitted():
    jobs, _ = after(numbers(), [], 10**6)
    assert next_end(jobs) == np.iinfo(np.int64).max
