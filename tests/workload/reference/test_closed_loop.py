"""Closed-loop sessions and pools of users on tiny scenes, each beside its twin."""

import math

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.reference.closed_loop import generated
from blis_jax.workload.reference.follow_up_table import NO_PARENT, draw_closed_loop
from blis_jax.workload.reference.generate import drawn
from blis_jax.workload.spec import parse_spec
from blis_jax.workload.versions import REVISED

LAWS = """
    input_distribution: {type: constant, params: {value: 20}}
    output_distribution: {type: constant, params: {value: 6}}"""


def chat(more="", turns="", top="num_requests: 12"):
    return parse_spec(
        f"""
version: "2"
aggregate_rate: 100
{top}
clients:
  - id: a
    rate_fraction: 1
    arrival: {{process: poisson}}{LAWS}
    reasoning: {{multi_turn: {{max_rounds: 3, think_time_us: 1000{turns}}}}}
    {more}
""",
        revision=REVISED,
    )


def pool(users=4, think_us=1000, top="num_requests: 10", more=""):
    return parse_spec(
        f"""
version: "2"
{top}
clients:
  - id: u
    concurrency: {users}
    think_time_us: {think_us}{LAWS}
    {more}
""",
        revision=REVISED,
    )


def test_only_first_rounds_arrive_by_themselves():
    closed, opened = drawn(chat(), 1), drawn(chat("closed_loop: false"), 1)
    assert {one.round_index for one in closed.requests} == {0} and closed.sessions
    assert {one.round_index for one in opened.requests} == {0, 1, 2} and not opened.sessions
    firsts = [one for one in opened.requests if not one.round_index]
    assert [one.arrival_us for one in closed.requests] == [one.arrival_us for one in firsts]


def test_a_round_follows_its_completion_and_the_think_time():
    workload = drawn(chat(), 1)
    follow_ups, first = workload.follow_ups(), workload.requests[0]
    second = follow_ups.after(first, 5_000_000)
    assert (second.arrival_us, second.round_index) == (5_001_000, 1)
    assert second.session == first.session and second.deadline_us == 305_001_000
    third = follow_ups.after(second, 6_000_000)
    assert third.round_index == 2
    assert follow_ups.after(third, 7_000_000) is None


def test_a_session_ends_with_a_request_that_does_not_complete():
    workload = drawn(chat(), 1)
    follow_ups, first = workload.follow_ups(), workload.requests[0]
    follow_ups.ends(first)
    assert follow_ups.after(first, 5_000_000) is None
    assert follow_ups.after(workload.requests[1], 5_000_000) is not None


def test_no_round_arrives_after_the_horizon():
    for horizon, follows in ((5_001_000, True), (5_000_999, False)):
        workload = drawn(chat(top=f"horizon: {horizon}"), 1)
        later = workload.follow_ups().after(workload.requests[0], 5_000_000)
        assert (later is not None) == follows


def test_growing_prompts_hold_what_was_generated():
    workload = drawn(chat(turns=", context_growth: accumulate"), 1)
    first = workload.requests[0]
    for count in (generated(first), 2):
        second = workload.follow_ups().after(first, 0, count)
        (prompt,) = second.prompt
        assert len(prompt) == 20 + count + 20
        assert np.array_equal(prompt[:20], first.prompt[0])
        assert np.array_equal(prompt[20 : 20 + count], first.output[:count])
    plain = drawn(chat(), 1)
    assert plain.follow_ups().after(plain.requests[0], 0).input_len == 20


def test_later_rounds_take_the_prefix_if_the_file_says_how_long_it_is():
    for length, later_len in ((32, 52), (0, 20)):
        workload = drawn(chat(f"prefix_group: g\n    prefix_length: {length}"), 1)
        first = workload.requests[0]
        assert first.input_len == (length or 50) + 20 and first.prefix_len == (length or 50)
        second = workload.follow_ups().after(first, 0)
        assert second.input_len == later_len
        assert np.array_equal(second.prompt[0][:length], first.prompt[0][:length])


def test_the_users_of_a_pool_begin_within_one_think_time():
    workload = drawn(pool(), 1)
    assert [one.arrival_us for one in workload.requests] == [0, 250, 500, 750]
    assert [one.session for one in workload.requests][:2] == [
        "concurrency_u_user_0",
        "concurrency_u_user_1",
    ]
    assert {one.arrival_us for one in drawn(pool(think_us=0), 1).requests} == {0}


def test_a_pool_sends_its_number_of_requests_and_no_more():
    workload = drawn(pool(), 1)
    assert workload.budget == 6
    follow_ups, request = workload.follow_ups(), workload.requests[2]
    for turn in range(6):
        request = follow_ups.after(request, 100 * turn)
        assert request.round_index == turn + 1
    assert follow_ups.after(request, 1000) is None
    assert follow_ups.after(workload.requests[0], 1000) is None
    assert len(drawn(pool(users=40), 1).requests) == 10 and drawn(pool(users=40), 1).budget == 0
    assert math.isinf(drawn(pool(top="horizon: 9000"), 1).budget)


def test_sessions_and_users_wait_300_s_unless_the_file_or_the_option_says_otherwise():
    def timeouts(spec, timeout_us=None):
        return {
            one.deadline_us and one.deadline_us - one.arrival_us
            for one in drawn(spec, 1, timeout_us).requests
        }

    assert timeouts(chat()) == timeouts(pool()) == {300_000_000}
    assert timeouts(pool(more="timeout: 70")) == {70}
    assert timeouts(pool(more="timeout: 0")) == {0}
    assert timeouts(pool(more="timeout: 70"), 90) == {90}
    assert timeouts(chat(more="timeout: 70"), 0) == {0}


def test_the_table_lists_all_rounds_behind_the_first_ones():
    loop = draw_closed_loop(chat(), 1)
    num_firsts = int((loop.parent == NO_PARENT).sum())
    assert loop.table.num_rows == 3 * num_firsts and not loop.is_cut.any()
    assert loop.parent[num_firsts : num_firsts + 4].tolist() == [0, num_firsts, 1, num_firsts + 2]
    assert set(loop.think_time_us[:num_firsts].tolist()) == {0}
    assert set(loop.think_time_us[num_firsts:].tolist()) == {1000}
    assert set(loop.timeout_us.tolist()) == {300_000_000}
    assert loop.budget is None and loop.horizon_us is None
    assert sorted(loop.id_rank.tolist()) == list(range(loop.table.num_rows))


def test_a_cut_table_marks_the_sessions_that_go_on():
    loop = draw_closed_loop(pool(), 1, most_rounds=2)
    assert loop.table.num_rows == 8 and loop.budget == 6
    assert loop.is_cut.tolist() == [False] * 4 + [True] * 4
    whole = draw_closed_loop(pool(), 1)
    assert whole.table.num_rows == 4 * 7  # a user's first request and the whole budget
    with pytest.raises(ConfigError, match="num_requests: the users of a pool send until"):
        draw_closed_loop(pool(top="horizon: 9000"), 1)
    with pytest.raises(ConfigError, match="most_rounds: got 0"):
        draw_closed_loop(pool(), 1, most_rounds=0)


def test_clients_of_one_id_go_on_as_the_last_of_them_says():
    text = "version: '2'\naggregate_rate: 100\nnum_requests: 40\nclients:"
    for turns in ("max_rounds: 3", "max_rounds: 2, think_time_us: 7"):
        text += f"""
  - id: a
    rate_fraction: 1
    arrival: {{process: poisson}}{LAWS}
    reasoning: {{multi_turn: {{{turns}}}}}"""
    workload = drawn(parse_spec(text, revision=REVISED), 1)
    assert {one.client for one in workload.requests} == {0, 1}
    assert {one.think_time_us for one in workload.sessions.values()} == {7}
