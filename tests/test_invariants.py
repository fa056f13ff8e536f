"""Every invariant holds in sound runs, and each is broken by a change that it should see."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax import invariants
from blis_jax.records import InstanceRecords, RequestRecords, Status
from tests.golden_records import compressed
from tests.test_metrics import SAMPLE, all_scenarios, golden_run
from tests.tiny_records import changed, whole_run

# Invariant: part, column, value, entry.
BREAKERS: dict[str, tuple[str, str, Any, int | None]] = {
    "requests_conserved": ("instances", "completed_requests", 1, 0),
    "status_matches_decisions": ("requests", "instance", 0, 2),
    "times_exist_by_status": ("requests", "left_us", -1, 0),
    "events_in_order": ("requests", "queued_at_us", 71, 1),
    "steps_in_order": ("requests", "token_step_idx", 4, 0),
    "e2e_covers_ttft": ("requests", "e2e_us", 154, 0),
    "ttft_parts_add_up": ("requests", "ttft_parts_us", 1, 0),
    "tokens_of_request_conserved": ("requests", "progress_index", 17, 0),
    "tokens_of_instance_conserved": ("instances", "total_output_tokens", 3, 0),
    "preemptions_conserved": ("requests", "num_scheduled", 2, 1),
    "used_blocks_within_capacity": ("instances", "total_kv_blocks", 1, 0),
    "blocks_released": ("instances", "used_blocks_at_end", 1, 0),
    "counters_not_negative": ("instances", "gpu_hits", -1, 0),
    "cached_tokens_within_prompt": ("requests", "cached_tokens_first_sched", 32, 0),
    "step_counts_conserved": ("instances", "peak_kv_blocks_used", 3, 0),
    "step_events_conserved": ("steps", "num_completed", 2, 1),
    "steps_follow_each_other": ("steps", "start_us", 54, 2),
    "no_idling_while_requests_wait": ("steps", "start_us", 76, 2),
    "steps_not_negative": ("steps", "duration_us", -1, 0),
    "latencies_of_completed_requests": ("steps", "num_itl", 9, 1),
}


def broken(record: Any) -> dict[str, int]:
    return {name: count for name, count in invariants.violations(record).items() if count}


def test_sound_run_breaks_nothing():
    counts = invariants.violations(whole_run())
    assert set(counts.values()) == {0}
    assert tuple(counts) == invariants.NAMES == tuple(BREAKERS)


@pytest.mark.parametrize("name", BREAKERS)
def test_broken_run_is_seen(name: str):
    sound = whole_run()
    if name == "no_idling_while_requests_wait":
        sound = changed(sound, "steps", "waiting", 1, at=1)
        sound = changed(sound, "instances", "waiting_sum", 2)
        assert broken(sound) == {}
    assert name in broken(changed(sound, *BREAKERS[name]))


def test_numbers_and_statements():
    checks = (*invariants.REQUEST_CHECKS, *invariants.STEP_CHECKS)
    for number, check in enumerate(checks, start=1):
        assert (check.__doc__ or "").startswith(f"{number}. ")


def test_batch_equals_single_runs():
    sound = whole_run()
    rows = [sound, *(changed(sound, *breaker) for breaker in BREAKERS.values())]

    def stacked(part: str, kind: type) -> Any:
        names = [field.name for field in dataclasses.fields(kind)]
        columns = {name: [getattr(getattr(row, part), name) for row in rows] for name in names}
        return kind(**{name: np.stack(values) for name, values in columns.items()})

    counts = invariants.batched_violations(
        stacked("requests", RequestRecords), stacked("instances", InstanceRecords)
    )
    for row, record in enumerate(rows):
        single = invariants.violations(record)
        assert {name: int(values[row]) for name, values in counts.items()} == {
            name: single[name] for name in counts
        }


def test_overshot_progress_is_excused_only_near_a_preemption():
    lost_token = changed(whole_run(), "requests", "ttft_us", -1, at=0)
    assert broken(lost_token)["times_exist_by_status"] == 1
    near = changed(lost_token, "instances", "preemption_count", 1)
    assert "times_exist_by_status" not in broken(near)


def test_waiting_request_must_have_been_queued():
    waiting = changed(whole_run(), "requests", "status", Status.WAITING, at=2)
    assert broken(waiting)["times_exist_by_status"] == 1


@pytest.mark.golden
@pytest.mark.parametrize("scenario", SAMPLE)
def test_recorded_runs_break_nothing(golden_dir: Path, scenario: str):
    check_run(golden_dir, scenario)


@pytest.mark.golden
@pytest.mark.slow
@pytest.mark.parametrize("scenario", all_scenarios())
def test_every_recorded_run_breaks_nothing(golden_dir: Path, scenario: str):
    check_run(golden_dir, scenario)


def check_run(golden_dir: Path, scenario: str) -> None:
    run = golden_run(golden_dir, scenario)
    if run.is_without_preemption:
        assert broken(run.record) == broken(compressed(run.record)) == {}
    else:  # the reader of the recorded arrays cannot place everything then
        unknown = {"step_events_conserved", "ttft_parts_add_up"}
        assert set(broken(run.record)) <= unknown
