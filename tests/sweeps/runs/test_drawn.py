"""Requests of many seeds, drawn by processes side by side."""

from typing import Any

import numpy as np
import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.lazy import jax
from blis_jax.runs.options import side_by_side
from blis_jax.workload.spec import load_builtin
from sweeps.runs import drawn
from sweeps.runs.drawn import DrawnRows

SEEDS = (1, 2, 3, 5)


@pytest.fixture
def in_processes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Draw as many requests as these by two processes, and keep how often processes were asked."""
    asked: list[int] = []

    def counted(*arguments: Any) -> Any:
        asked.append(1)
        return side_by_side(*arguments)

    monkeypatch.setattr(drawn, "MANY", 30)
    monkeypatch.setattr(drawn, "num_workers", lambda: 2)
    monkeypatch.setattr(drawn, "side_by_side", counted)
    return asked


def test_processes_draw_what_one_process_draws(in_processes: list[int]) -> None:
    spec = load_builtin("mixed").model_copy(update={"num_requests": 20})
    config = ClusterConfig()
    one_each = [DrawnRows("reference").rows(config, spec, [seed])[0] for seed in SEEDS]
    assert not in_processes
    many = DrawnRows("reference").rows(config, spec, SEEDS)
    assert in_processes
    for row, expected in zip(many, one_each, strict=True):
        pairs = zip(jax.tree.leaves(row.table), jax.tree.leaves(expected.table), strict=True)
        assert all(np.array_equal(got, wanted) for got, wanted in pairs)


def test_a_seed_without_requests_is_refused_by_its_number(
    in_processes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawn, "MANY", 1)
    changes = {"num_requests": 0, "horizon": 1_000}
    spec = load_builtin("mixed").model_copy(update=changes)
    sizes = [drawn.run_of_reference(spec, seed, 16)[0].num_rows for seed in range(100)]
    seeds = sorted(range(100), key=lambda seed: -sizes[seed])
    empty = next(seed for seed in seeds if not sizes[seed])
    assert sizes[seeds[0]]
    with pytest.raises(ConfigError, match=f"^seed {empty}: no request arrives before the horizon"):
        DrawnRows("reference").rows(ClusterConfig(), spec, seeds)
    assert in_processes


def test_sources_are_kept_apart_and_the_oldest_go_beyond_the_limit() -> None:
    few, many = (
        load_builtin("mixed").model_copy(update={"num_requests": count}) for count in (20, 30)
    )
    rows, config = DrawnRows("jax", most_requests=60), ClusterConfig()
    sizes = [[row.table.num_rows for row in rows.rows(config, of, [1])] for of in (few, many)]
    assert sizes == [[20], [30]]
    (again,) = rows.rows(config, few, [1])
    assert again.table is rows.table(few, 1, 16)
    rows.rows(config, many, [2])  # the third table is one too many
    assert [(seed, of[1] is few) for (_, seed, _), of in rows.kept.items()] == [
        (1, True),
        (2, False),
    ]
