"""What is added to a trace: pace, classes, shared prefixes, conversations."""

from dataclasses import replace

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.traces import options
from blis_jax.traces.rows import make_rows, to_table
from tests.traces.formats.test_mooncake import lines_of, shared_blocks
from tests.traces.scenes import read_text

PLAIN = "arrival_us,input_tokens,output_tokens,slo_class,session,round_index\n"


def many_rows(count=4000, sessions=0):
    sessions = np.arange(count) % sessions if sessions else np.full(count, -1)
    rows = make_rows(np.arange(count), np.full(count, 200), np.full(count, 5))
    names = tuple(f"s{number}" for number in range(sessions.max() + 1))
    return replace(rows, session=sessions.astype(np.int32), session_names=names)


def test_time_scale_multiplies_arrivals_and_cuts(tmp_path):
    text = PLAIN + "0,1,1,,,0\n3,1,1,,,0\n1000001,1,1,,,0\n"
    assert read_text(tmp_path, text, time_scale=0.5).rows.arrival_us.tolist() == [0, 1, 500_000]
    assert read_text(tmp_path, text, time_scale=3).rows.arrival_us.tolist() == [0, 9, 3_000_003]


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf"), 1e18])
def test_impossible_time_scales_are_refused(tmp_path, factor):
    with pytest.raises(ConfigError, match="--time-scale"):
        read_text(tmp_path, PLAIN + "5,1,1,,,0\n", time_scale=factor)


def test_classes_are_drawn_by_weight_and_seed():
    weights = options.parse_slo_mix("critical:1, standard:2,sheddable:1")
    rows = options.mix_classes(many_rows(), weights, seed=3)
    shares = np.bincount(rows.slo_class, minlength=6) / len(rows)
    # 4,000 draws: five standard deviations are 0.04
    np.testing.assert_allclose(shares, [0, 0.25, 0.5, 0.25, 0, 0], atol=0.04)
    again = options.mix_classes(many_rows(), weights, seed=3)
    np.testing.assert_array_equal(again.slo_class, rows.slo_class)
    other = options.mix_classes(many_rows(), weights, seed=4)
    assert not np.array_equal(other.slo_class, rows.slo_class)


def test_the_turns_of_a_session_have_one_class():
    rows = options.mix_classes(many_rows(sessions=37), {"critical": 1.0, "batch": 1.0}, seed=0)
    for session in range(37):
        assert len(set(rows.slo_class[rows.session == session].tolist())) == 1
    assert len(set(rows.slo_class.tolist())) == 2


def test_classes_of_the_trace_stay(tmp_path):
    text = PLAIN + "0,1,2,batch,,0\n1000000,1,2,,,0\n"
    trace = read_text(tmp_path, text, slo_mix="critical:1")
    assert trace.rows.slo_class.tolist() == [4, 1]
    assert trace.report.notes == []
    trace = read_text(tmp_path, PLAIN + "0,1,2,batch,,0\n", slo_mix="critical:1")
    assert "--slo-mix has no effect" in trace.report.notes[0]


@pytest.mark.parametrize(
    "text", ["", "gold:1", "critical", "critical:x", "critical:-1", "critical:0", "batch:1,batch:2"]
)
def test_malformed_mixes_are_refused(text):
    with pytest.raises(ConfigError, match="--slo-mix"):
        options.parse_slo_mix(text)


def test_one_shared_prefix_goes_as_far_as_the_shorter_prompt(tmp_path):
    text = PLAIN + "0,100,1,,,0\n1,200,1,,,0\n2,30,1,,,0\n"
    rows = read_text(tmp_path, text, prefix_model="shared:64").rows
    assert rows.input_len.tolist() == [100, 200, 30]
    assert shared_blocks(to_table(rows, 16)[0]) == {(0, 1): 4, (0, 2): 1, (1, 2): 1}


def test_groups_are_drawn_evenly_and_share_sets_the_members():
    model = options.parse_prefix_model("groups:4:64:0.5")
    rows = model(many_rows(), 5)
    shares = np.bincount(rows.prefix_group + 1, minlength=5) / len(rows)
    np.testing.assert_allclose(shares, [0.5, *[0.125] * 4], atol=0.04)
    assert set(rows.prefix_len[rows.prefix_group >= 0].tolist()) == {64}
    assert set(rows.prefix_len[rows.prefix_group < 0].tolist()) == {0}


def test_prefixes_and_classes_have_streams_of_their_own():
    model = options.parse_prefix_model("groups:4:64")
    mixed = options.mix_classes(many_rows(), {"critical": 1.0, "batch": 1.0}, seed=5)
    np.testing.assert_array_equal(model(mixed, 5).prefix_group, model(many_rows(), 5).prefix_group)


def test_sessions_grow(tmp_path):
    text = PLAIN + (
        "0,64,32,,a,0\n"  # text of 96 tokens
        "1,64,32,,b,0\n"
        "2,160,16,,a,1\n"  # begins with all 96
        "3,48,16,,a,2\n"  # shorter than the text: its first 48 tokens
        "4,200,16,,a,3\n"  # begins with the 176 tokens of turn 1
        "5,100,10,,,0\n"
    )
    rows = read_text(tmp_path, text, prefix_model="sessions").rows
    assert shared_blocks(to_table(rows, 16)[0]) == {
        (0, 2): 6,
        (0, 3): 3,
        (0, 4): 6,
        (2, 3): 3,
        (2, 4): 11,
        (3, 4): 3,
    }


def test_sessions_need_sessions(tmp_path):
    with pytest.raises(ConfigError, match="need a trace with sessions"):
        read_text(tmp_path, PLAIN + "0,64,32,,,0\n", prefix_model="sessions")


def test_contents_of_the_trace_stay(tmp_path):
    text = lines_of((0, 600, 2, [1, 2]), (900, 600, 2, [3, 4]))
    trace = read_text(tmp_path, text, prefix_model="shared:64")
    assert shared_blocks(to_table(trace.rows, 16)[0]) == {}
    assert "--prefix-model has no effect" in trace.report.notes[0]
    assert read_text(tmp_path, text, prefix_model="none").report.notes == []


@pytest.mark.parametrize(
    "text",
    ["", "some", "shared", "shared:0", "shared:x", "groups:0:5", "groups:2", "groups:2:5:1.5"],
)
def test_malformed_prefix_models_are_refused(text):
    with pytest.raises(ConfigError, match="--prefix-model"):
        options.parse_prefix_model(text)
