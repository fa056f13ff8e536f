"""Workloads in the form of inference-perf: which clients each revision makes of them."""

import numpy as np
import pytest

from blis_jax.workload.expansion import expanded
from blis_jax.workload.inference_perf import ExactCount, OwnRate
from blis_jax.workload.reference import draw, golden_arrays
from blis_jax.workload.source import FIRST_REVISION, REVISED
from blis_jax.workload.spec import override, parse_spec


def text_of(*stages, chat=False, prompts=2, users=3, question=8, top="num_requests: 500"):
    listed = ", ".join(f"{{rate: {rate}, duration: {duration}}}" for rate, duration in stages)
    return f"""
version: "1"
seed: 5
{top}
inference_perf:
  stages: [{listed}]
  shared_prefix: {{num_unique_system_prompts: {prompts}, num_users_per_system_prompt: {users},
    system_prompt_len: 32, question_len: {question}, output_len: 4, enable_multi_turn_chat: {chat}}}
"""


def revised(*stages, **more):
    return parse_spec(text_of(*stages, **more), revision=REVISED)


def test_one_stage_sends_exactly_its_requests_in_its_span():
    spec = revised((7.5, 10))
    assert set(expanded(spec).paces) == {ExactCount(12, 10_000_000), ExactCount(13, 10_000_000)}
    arrays = golden_arrays(spec)
    assert len(arrays["arrival_us"]) == 75
    assert arrays["arrival_us"].max() <= 10_000_000
    assert np.bincount(arrays["client"]).tolist() == [13, 13, 13, 12, 12, 12]
    assert set(arrays["input_len"].tolist()) == {40} and set(arrays["output_len"].tolist()) == {4}
    names = [str(name) for name in arrays["tenant_names"]]
    assert sorted(names) == ["prompt-0", "prompt-1"]


def test_each_stage_keeps_its_own_rate():
    spec = revised((40, 10), (5, 20))
    expansion = expanded(spec)
    assert expansion.aggregate_rate == 45
    assert [client.id for client in expansion.clients][::6] == [
        "stage-0-prompt-0-user-0",
        "stage-1-prompt-0-user-0",
    ]
    assert expansion.paces[0] == OwnRate(40 / 6 / 1e6) and expansion.paces[-1] == OwnRate(
        5 / 6 / 1e6
    )
    arrays = golden_arrays(spec)
    is_late = arrays["client"] >= 6
    assert (arrays["arrival_us"][is_late] >= 10_000_000).all()
    assert (arrays["arrival_us"][~is_late] < 10_000_000).all()
    assert 300 < (~is_late).sum() < 500 and 60 < is_late.sum() < 140


def test_chat_users_share_out_the_rounds_and_the_time():
    clients = expanded(revised((2, 10), chat=True)).clients
    turns = [client.multi_turn for client in clients]
    assert [one.max_rounds for one in turns] == [4, 4, 3, 3, 3, 3]
    assert {one.think_time_us for one in turns} == {3_000_000}
    assert all(client.has_single_session and client.is_closed_loop for client in clients)
    assert expanded(revised((2, 10), chat=True)).paces == (None,) * 6


def test_a_question_without_length_has_one_token():
    table, _ = draw(revised((2, 10), question=0))
    assert set(np.asarray(table.input_len).tolist()) == {33}


def test_the_first_revision_gives_all_users_one_rate_and_the_windows():
    spec = parse_spec(text_of((40, 10), (5, 30)), revision=FIRST_REVISION)
    assert spec.aggregate_rate == (40 * 10 + 5 * 30) / 40
    assert spec.inference_perf is None and len(spec.clients) == 6
    assert {client.slo_class for client in spec.clients} == {"batch"}
    windows = [(one.start_us, one.end_us) for one in spec.clients[0].active_windows]
    assert windows == [(0, 10_000_000), (10_000_000, 40_000_000)]
    assert override(spec, num_requests=3).clients == spec.clients
    table, names = draw(spec)
    assert names.tenant_names in (("prompt-0", "prompt-1"), ("prompt-1", "prompt-0"))
    assert len(np.asarray(table.arrival_us)) == 500


def test_a_rate_of_the_file_goes_before_the_mean_in_the_first_revision_only():
    text = text_of((4, 10), top="num_requests: 30\naggregate_rate: 90")
    assert parse_spec(text).aggregate_rate == 90
    assert expanded(parse_spec(text, revision=REVISED)).aggregate_rate == 4


def test_chat_users_of_the_first_revision_hold_five_growing_rounds():
    spec = parse_spec(text_of((4, 10), chat=True))
    (turns,) = {client.multi_turn for client in spec.clients}
    assert (turns.max_rounds, turns.think_time_us, turns.context_growth) == (
        5,
        500_000,
        "accumulate",
    )
    assert not any(client.lifecycle for client in spec.clients)


@pytest.mark.parametrize("revision", [FIRST_REVISION, REVISED])
def test_users_of_one_prompt_share_it(revision):
    table, _ = draw(parse_spec(text_of((30, 10)), revision=revision))
    nodes = np.asarray(table.path_nodes)[:, 0]
    assert len(np.unique(nodes)) == 2
    assert np.asarray(table.node_blocks)[nodes].tolist() == [2] * len(nodes)
