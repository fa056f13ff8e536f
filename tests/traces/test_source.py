"""A trace as the source of a study's requests: windows, seeds, pace, identity, refusals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.traces.read import TraceOptions
from blis_jax.traces.source import TraceSource
from tests.traces.formats.test_trace_v3 import HEADER, line

HEAD = "arrival_us,input_tokens,output_tokens\n"
PLAIN, RANDOM = ClusterConfig(), ClusterConfig(routing_policy="power-of-two")


def written(folder: Path, times: list[int]) -> Path:
    path = folder / "trace.csv"
    path.write_text(HEAD + "".join(f"{time},100,{5 + at}\n" for at, time in enumerate(times)))
    return path


def source(folder: Path, windows: int | None = None, **options: object) -> TraceSource:
    times = [1000, 2000, 4000, 4500, 6500, 7000, 9000, 9000]
    return TraceSource(written(folder, times), TraceOptions(**options), windows)  # type: ignore[arg-type]


def test_windows_share_out_the_requests_and_begin_at_zero(tmp_path: Path) -> None:
    one = source(tmp_path, windows=2)
    assert one.seeds(None, [PLAIN]) == (1, 2)
    arrivals = [one.rows(seed).arrival_us.tolist() for seed in (1, 2)]
    assert arrivals == [[0, 1000, 3000, 3500], [1500, 2000, 4000, 4000]]
    outputs = [length for seed in (1, 2) for length in one.rows(seed).output_len.tolist()]
    assert outputs == [5, 6, 7, 8, 9, 10, 11, 12]
    assert one.run_s == pytest.approx(0.004)


def test_an_empty_window_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, [0, 1_000_000, 3_900_000, 4_000_000])
    with pytest.raises(ConfigError, match=r"window 3, from 2 to 3 s; give 2 at most, or"):
        TraceSource(path, TraceOptions(), 4)
    with pytest.raises(
        ConfigError, match="has 4 requests, and every window needs some; give 2 at most"
    ):
        TraceSource(path, TraceOptions(), 5)
    with pytest.raises(ConfigError, match="got 1, allowed is 2 to"):
        TraceSource(path, TraceOptions(), 1)
    alone = written(tmp_path, [0, 1])
    with pytest.raises(ConfigError, match=r"has 2 requests, .*; give 2 at most, or a longer trace"):
        TraceSource(alone, TraceOptions(), 3)
    early = written(tmp_path, [0, 0, 1, 4_000_000])
    with pytest.raises(ConfigError, match=r"arrives in window 2, .* give 2 at most"):
        TraceSource(early, TraceOptions(), 3)


def test_one_run_is_enough_where_nothing_is_drawn(tmp_path: Path) -> None:
    whole = source(tmp_path)
    assert whole.seeds(None, [PLAIN]) == (42,)
    assert whole.seeds((7, 8), [PLAIN]) == (7,)
    assert whole.seeds(None, [PLAIN, RANDOM]) == (42, 43, 44)
    assert not whole.depends_on_seed(PLAIN) and whole.depends_on_seed(RANDOM)
    with pytest.raises(ConfigError, match="--seeds and --trace-windows are both given"):
        source(tmp_path, windows=2).seeds((7, 8), [PLAIN])


def test_drawn_classes_follow_the_seed_and_nothing_else_does(tmp_path: Path) -> None:
    mixed = source(tmp_path, slo_mix="critical:0.5,sheddable:0.5")
    assert mixed.seeds((1, 2), [PLAIN]) == (1, 2)
    assert set(mixed.slo_classes) == {"critical", "sheddable"}
    first, second = mixed.rows(1), mixed.rows(2)
    assert (first.slo_class != second.slo_class).any()
    np.testing.assert_array_equal(first.arrival_us, second.arrival_us)
    assert source(tmp_path, slo_mix="critical:1").seeds((1, 2), [PLAIN]) == (1,)
    assert source(tmp_path, prefix_model="shared:16").seeds((1, 2), [PLAIN]) == (1,)
    assert source(tmp_path, prefix_model="groups:2:16").seeds((1, 2), [PLAIN]) == (1, 2)


def test_a_pace_keeps_everything_but_the_times(tmp_path: Path) -> None:
    one = source(tmp_path, windows=2)
    assert one.aggregate_rate == pytest.approx(1000)
    twice = one.at_rate(2000)
    assert twice.aggregate_rate == pytest.approx(2000)
    assert twice.rows(1).arrival_us.tolist() == [0, 500, 1500, 1750]
    assert twice.content() != one.content()


def test_what_requests_depend_on(tmp_path: Path) -> None:
    one, same = source(tmp_path), source(tmp_path)
    assert one.content() == same.content()
    later = dataclasses.replace(one, options=TraceOptions(limit=4), _kept={})
    assert later.content() != one.content() and later.num_requests == 4
    (tmp_path / "trace.csv").write_text(HEAD + "0,100,5\n9,100,6\n")
    assert TraceSource(one.path, TraceOptions()).content() != one.content()


def test_metrics_of_absent_classes_are_refused(tmp_path: Path) -> None:
    one = source(tmp_path)
    one.check_classes(["ttft_p99_ms", "ttft_p99_ms[default]"])
    with pytest.raises(
        ConfigError, match="no requests of class critical; it has default; --slo-mix"
    ):
        one.check_classes(["ttft_p99_ms[critical]"])


def test_a_trace_is_run_on_every_seed_where_news_is_lost(tmp_path: Path) -> None:
    whole = source(tmp_path)
    losing = ClusterConfig(routing_policy="weighted", variant="routing", prefix_index_loss=0.5)
    assert whole.seeds((7, 8), [losing]) == (7, 8)
    assert whole.depends_on_seed(losing) and not whole.depends_on_seed(PLAIN)


def test_a_cluster_goes_by_the_deadlines_and_models_of_its_profile(tmp_path: Path) -> None:
    rows = (
        line(0, 100, deadline_us="600")
        + line(1, 200, model="m")
        + line(2, 300, model="qwen/qwen3-14b")
    )
    (tmp_path / "late.csv").write_text(HEADER + rows)
    trace = TraceSource(tmp_path / "late.csv", TraceOptions())
    table = trace.table(42, 16)
    assert trace.placed(table, 42, PLAIN) is table
    corrected = trace.placed(table, 42, PLAIN.replace(corrected=True))
    assert corrected.timeout_us.tolist() == [500, 0, 0]  # type: ignore[attr-defined]
    assert not hasattr(corrected, "is_elsewhere")
    august = trace.placed(table, 42, ClusterConfig(revision=AUGUST, model="qwen/qwen3-14b"))
    assert august.is_elsewhere.tolist() == [0, 1, 0]  # type: ignore[attr-defined]
    windows = dataclasses.replace(trace, num_windows=2, pace=2.0)
    later = windows.placed(
        windows.table(2, 16), 2, ClusterConfig(revision=AUGUST, model="qwen/qwen3-14b")
    )
    assert later.is_elsewhere.tolist() == [1, 0]  # type: ignore[attr-defined]
