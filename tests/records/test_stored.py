"""Whole runs as files: what is read is what was written, and damage is a sentence."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from blis_jax import figures_of, over_seeds
from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.records import stored
from blis_jax.records.record import AdapterRecords, RunRecord
from blis_jax.runs.options import Options
from blis_jax.workload.spec import load_builtin, override

SPEC = override(load_builtin("mixed"), num_requests=30)
CONFIG = ClusterConfig(num_instances=2, routing_policy="weighted")
OPTIONS = Options(resolve_ties=False)


@pytest.fixture(scope="module")
def record() -> RunRecord:
    return over_seeds(CONFIG, SPEC, [3], options=OPTIONS)[0]


def assert_equal(one: object, other: object) -> None:
    assert type(one) is type(other)
    if dataclasses.is_dataclass(one):
        for field in dataclasses.fields(one):
            assert_equal(getattr(one, field.name), getattr(other, field.name))
    elif isinstance(one, np.ndarray):
        assert isinstance(other, np.ndarray) and one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)
    else:
        assert one == other


def test_a_run_is_read_as_it_was_written(record: RunRecord, tmp_path: Path) -> None:
    rich = dataclasses.replace(
        record, names=("a", "b"), figures={"source.x": 0.1}, invariant_failures={"kv": 2},
        adapters=AdapterRecords(np.ones((2, 1), int), np.zeros((2, 1), int), ids=("lora",)),
    )  # fmt: skip
    for one in (record, rich):
        path = stored.store(one, tmp_path)
        assert_equal(stored.load(path), one)
        assert stored.store(one, tmp_path) == path  # equal runs are one file
    assert len(list(tmp_path.iterdir())) == 2


def test_figures_name_the_file_of_their_run(tmp_path: Path) -> None:
    summarize = figures_of(["ttft_p99_ms"], store=tmp_path / "runs")
    kept = over_seeds(CONFIG, SPEC, [3, 4], summarize, OPTIONS)
    whole = over_seeds(CONFIG, SPEC, [3, 4], figures_of(["ttft_p99_ms"], keep="records"), OPTIONS)
    for one, other in zip(kept, whole, strict=True):
        assert one.metrics == other.metrics and one.record is None
        assert_equal(stored.load(one.stored), other.record)
        assert "stored" not in one.document()


def test_what_cannot_be_read_is_a_sentence(record: RunRecord, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        stored.load(tmp_path / "none.npz")
    path = stored.store(record, tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="damaged or renamed; make the run again"):
        stored.load(path)
    with pytest.raises(ConfigError, match="leave one out"):
        figures_of(["ttft_p99_ms"], keep="records", store=tmp_path)
