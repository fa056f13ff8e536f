"""The workload of a cell: rate, burstiness, equal duration, conversations."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from blis_jax.errors import ConfigError
from blis_jax.workload.reference import draw
from blis_jax.workload.spec import load_builtin, parse_spec
from sweeps.robustness.plan import Extent, Shape, load_shape
from tests.workload.servegen.scenes import COHORT


def test_the_ledgers_cell_has_the_ledgers_workload() -> None:
    for name in ("mixed", "nonorthogonal", "asymmetric", "multiprefix"):
        assert load_shape(name).at(2000.0, 2.0, Extent()) == load_builtin(name)


def test_equal_durations_have_requests_in_proportion_to_the_rate() -> None:
    shape = load_shape("mixed")
    found = [shape.at(rate, 1.0, Extent(0.25)) for rate in (400.0, 1600.0)]
    assert [spec.num_requests for spec in found] == [100, 400]
    spans = [np.mean([span_s(spec, seed) for seed in range(6)]) for spec in found]
    assert spans == pytest.approx([0.25, 0.25], rel=0.2)


def test_fixed_numbers_of_requests_take_longer_at_lower_rates() -> None:
    extent = Extent(None, 200)
    assert extent.at(400.0) == (200, 0.5)
    assert load_shape("mixed").at(100.0, 1.0, extent).num_requests == 200


def span_s(spec, seed) -> float:  # type: ignore[no-untyped-def]
    return float(np.max(draw(spec, seed, 16)[0].arrival_us)) / 1e6


@pytest.mark.parametrize("duration_s", [0.5, 4.0])
def test_conversations_have_all_rounds_within_the_duration_at_the_rate(duration_s: float) -> None:
    spec = load_shape("multiturn").at(400.0, 1.0, Extent(duration_s))
    turns = [client.multi_turn for client in spec.clients]
    assert all(turn and turn.think_time_us == int(duration_s * 1e6 / 4) for turn in turns)
    assert spec.num_requests == 400 * duration_s
    spans = [span_s(spec, seed) for seed in range(6)]
    assert np.mean(spans) == pytest.approx(duration_s, rel=0.15)
    lengths = draw(spec, 1, 16)[0].input_len
    assert np.max(lengths) > 2 * np.median(lengths)  # later rounds repeat the earlier


def test_long_durations_leave_think_times_alone() -> None:
    spec = load_shape("multiturn").at(400.0, 1.0, Extent(8.0))
    assert all(c.multi_turn and c.multi_turn.think_time_us == 1_000_000 for c in spec.clients)
    # of 8 s, the later rounds miss the first 1, 2 and 3: 8 + 7 + 6 + 5 requests of 8 conversations
    assert spec.aggregate_rate == pytest.approx(400 * 8 / 26)


def test_weibull_gaps_stay_weibull_and_others_become_gamma() -> None:
    document = load_builtin("mixed").model_dump()
    document["clients"][0]["arrival"] = {"process": "weibull", "cv": 1.0}
    document["clients"][1]["arrival"] = {"process": "poisson", "cv": None}
    spec = Shape("mine", parse_spec(yaml.safe_dump(yaml_ready(document)))).at(100.0, 3.0, Extent())
    arrivals = [(client.arrival.process, client.arrival.cv) for client in spec.clients]
    assert arrivals == [("weibull", 3.0), ("gamma", 3.0), ("gamma", 3.0)]


def yaml_ready(document):  # type: ignore[no-untyped-def]
    import json

    return json.loads(json.dumps(document))


def test_bad_extents_and_shapes_are_refused(tmp_path) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigError, match="--num-requests must be between 1"):
        Extent(None, 0)
    for duration in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="--duration must be above 0"):
            Extent(duration)
    with pytest.raises(ConfigError, match="makes 0 requests"):
        Extent(0.001).at(10.0)
    with pytest.raises(
        ConfigError, match=r"--shape: 'mixt' is neither a file.*did you mean 'mixed'"
    ):
        load_shape("mixt")
    path = tmp_path / "bare.yaml"
    path.write_text(f"version: '2'\naggregate_rate: 3\n{COHORT}")
    with pytest.raises(ConfigError, match="has no clients of its own"):
        load_shape(str(path))
    path.write_text("version: '2'\nservegen_data: {path: here}\n")
    with pytest.raises(ConfigError, match="aggregate_rate: missing"):
        load_shape(str(path))
