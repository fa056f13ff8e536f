"""Runs kept in files: made once, resumed after a stop, and the same whatever they are made with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from papers.record import runs as module
from papers.record.measures import Measurement, curves, scalars, ttft_parts
from papers.record.runs import PaperRuns, SettingSample, estimated_s
from papers.record.settings import RunSetting, of_arm
from tests.runs.test_scheduler import InThisProcess, elsewhere

SEEDS = (0, 1, 2)
SETTINGS = [
    of_arm(name, arm, rate=400, num_requests=60)
    for name, arm in {
        "small": "iter00_baseline:num_instances=2",
        "again": "iter00_baseline:num_instances=2;max_num_scheduled_tokens=2048",  # the default
        "tight": "iter00_baseline:num_instances=2;max_num_scheduled_tokens=600",
    }.items()
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, SettingSample]]:
    folder = tmp_path_factory.mktemp("parts")
    return folder, PaperRuns(folder, "jax").get(SETTINGS, SEEDS, scalars())


def is_equal(one: SettingSample, other: SettingSample) -> bool:
    return np.array_equal(one.values, other.values) and np.array_equal(one.seeds, other.seeds)


def test_settings_that_simulate_the_same_are_made_once(
    made: tuple[Path, dict[str, SettingSample]],
) -> None:
    folder, samples = made
    assert len(list(folder.rglob("*.npz"))) == 2
    assert is_equal(samples["small"], samples["again"])
    assert not is_equal(samples["small"], samples["tight"])
    assert samples["again"].setting.name == "again"


def test_other_processes_make_the_same_runs(
    made: tuple[Path, dict[str, SettingSample]], tmp_path: Path
) -> None:
    end = elsewhere(InThisProcess())
    try:
        found = PaperRuns(tmp_path, "jax").get(SETTINGS, SEEDS, scalars())
    finally:
        end()
    assert all(is_equal(found[name], sample) for name, sample in made[1].items())


def test_kept_runs_are_not_made_again(
    made: tuple[Path, dict[str, SettingSample]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, samples = made
    monkeypatch.setattr(module, "_Work", None)  # would fail if called
    kept = PaperRuns(folder, "jax")
    assert kept.missing(SETTINGS, SEEDS, scalars()) == []
    assert is_equal(kept.get(SETTINGS, SEEDS, scalars())["tight"], samples["tight"])
    fewer = kept.get(SETTINGS, SEEDS[1:], scalars())["tight"]
    assert np.array_equal(fewer.values, samples["tight"].values[1:])
    assert len(kept.missing(SETTINGS, (*SEEDS, 3), scalars())) == 2
    assert len(PaperRuns(folder, "jax", is_fresh=True).missing(SETTINGS, SEEDS, scalars())) == 2
    assert len(PaperRuns(folder, "reference").missing(SETTINGS, SEEDS, scalars())) == 2


@pytest.mark.slow
def test_stopped_in_between_goes_on_to_the_same_end(
    made: tuple[Path, dict[str, SettingSample]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_ROWS", 1)  # one setting at a time
    keep, seen = PaperRuns.keep, list[str]()

    def keeps(self: PaperRuns, sample: SettingSample, measurement: Measurement) -> None:
        keep(self, sample, measurement)
        seen.append(sample.setting.name)
        if len(seen) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(PaperRuns, "keep", keeps)
    with pytest.raises(KeyboardInterrupt):
        PaperRuns(tmp_path, "jax").get(SETTINGS, SEEDS, scalars())
    assert len(list(tmp_path.rglob("*.npz"))) == 1
    found = PaperRuns(tmp_path, "jax").get(SETTINGS, SEEDS, scalars())
    assert len(seen) == 2
    for name, sample in made[1].items():
        assert is_equal(found[name], sample)


def test_damaged_and_foreign_files_are_made_again(
    made: tuple[Path, dict[str, SettingSample]], tmp_path: Path
) -> None:
    folder, _ = made
    copies = PaperRuns(tmp_path, "jax")
    path = copies.path(SETTINGS[0], scalars())
    path.parent.mkdir(parents=True)
    whole = PaperRuns(folder, "jax").path(SETTINGS[0], scalars()).read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"not an archive"):
        path.write_bytes(content)
        assert SETTINGS[0].identity in ids(copies.missing(SETTINGS, SEEDS, scalars()))
    path.write_bytes(whole)
    assert SETTINGS[0].identity not in ids(copies.missing(SETTINGS, SEEDS, scalars()))


def ids(settings: Iterable[RunSetting]) -> set[str]:
    return {setting.identity for setting in settings}


@pytest.mark.slow
def test_further_seeds_join_those_that_are_there(
    made: tuple[Path, dict[str, SettingSample]], tmp_path: Path
) -> None:
    runs = PaperRuns(tmp_path, "jax")
    runs.get(SETTINGS[:1], SEEDS[:1], scalars())
    runs.get(SETTINGS[:1], SEEDS[1:], scalars())
    assert is_equal(runs.get(SETTINGS[:1], SEEDS, scalars())["small"], made[1]["small"])


def test_curves_and_parts_agree_with_the_scalars(
    made: tuple[Path, dict[str, SettingSample]],
) -> None:
    folder, samples = made
    runs = PaperRuns(folder, "jax")
    small = samples["small"]
    curve = runs.get(SETTINGS[:1], SEEDS, curves())["small"]
    assert np.allclose(curve.column("critical@0.99"), small.column("ttft_p99_ms[critical]"))
    parts = runs.get(SETTINGS[:1], SEEDS, ttft_parts())["small"]
    names = [name for name in parts.names if name.startswith("standard/all/")]
    total = sum(parts.column(name) for name in names)
    assert np.allclose(total, small.column("ttft_mean_ms[standard]"))


def test_estimate_grows_with_the_work() -> None:
    assert estimated_s([], 100) == 0
    one, two = estimated_s(SETTINGS[:1], 1000), estimated_s(SETTINGS, 1000)
    assert 0 < one < two
    pressed = of_arm("p", "iter00_baseline:total_kv_blocks=2000;kv_cpu_blocks=0")
    assert pressed.is_pressed and not SETTINGS[0].is_pressed
    assert estimated_s([pressed], 1000) > 2 * estimated_s([of_arm("q", "iter00_baseline")], 1000)
