"""Whole workloads: the order of draws by hand, and the lazy merge against drawing everything."""

import math

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.workload.distribution import prefix_lengths
from blis_jax.workload.expansion import expanded
from blis_jax.workload.go_random import Stream, subsystem_seed
from blis_jax.workload.reference import draw, generate, golden_arrays
from blis_jax.workload.reference.clients import MOST_TOKENS, VOCABULARY, draw_tokens
from blis_jax.workload.reference.follow_up_table import NO_PARENT, draw_closed_loop
from blis_jax.workload.reference.generate import drawn, generated
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import parse_spec
from blis_jax.workload.table import NEVER_US
from tests.support.follow_ups import follow_ups

EXPONENTIAL = "{type: exponential, params: {mean: 20}}"


def client(name, more="", arrival="{process: poisson}", fraction=1.0, lengths=EXPONENTIAL):
    return f"""
  - id: {name}
    rate_fraction: {fraction}
    arrival: {arrival}
    input_distribution: {lengths}
    output_distribution: {lengths}
    {more}"""


def spec_of(*clients, top="num_requests: 40", rate=1000.0):
    text = "\n".join(clients)
    return parse_spec(f"version: '2'\nseed: 5\naggregate_rate: {rate}\n{top}\nclients:{text}\n")


SESSIONS = (
    "reasoning: {{multi_turn: {{max_rounds: 4, think_time_us: {}, context_growth: accumulate}}}}"
)
WINDOWS = "lifecycle: {windows: [{start_us: 1000, end_us: 9000}, {start_us: 15000, end_us: 99000}]}"
SPECS = {
    "poisson": spec_of(client("a"), client("b", fraction=3.0), client("c", fraction=0.01)),
    "ties": spec_of(*(client(name, arrival="{process: constant}") for name in "abc")),
    "sessions": spec_of(client("a", SESSIONS.format(30_000)), client("b", SESSIONS.format(100))),
    "capped sessions": spec_of(client("a", SESSIONS.format(10**9)), client("b", fraction=0.001)),
    "windows": spec_of(client("a", WINDOWS), client("b", fraction=0.3)),
    "windows alone": spec_of(client("a", WINDOWS), top="num_requests: 4000"),
    "horizon": spec_of(client("a"), client("b", SESSIONS.format(9000)), top="horizon: 70000"),
    "both ends": spec_of(client("a"), client("b"), top="horizon: 30000\nnum_requests: 25"),
}


def drawn_to_the_end(spec):
    """As the reference does it: every client to its end, a stable sort, the cut."""
    stream = Stream(subsystem_seed(spec.seed, "workload-gen"))
    groups = prefix_lengths(spec.clients)
    prefixes = {group: draw_tokens(stream, length) for group, length in groups.items()}
    batches = generate._batches(spec, expanded(spec), prefixes, stream)
    requests = [request for client in batches for batch in client for request in batch.requests]
    requests = sorted(requests, key=lambda request: request.arrival_us)
    return requests[: spec.num_requests] if spec.num_requests else requests


@pytest.mark.parametrize("name", SPECS)
def test_drawing_side_by_side_gives_what_drawing_to_the_end_gives(name):
    spec = SPECS[name]
    arrays, requests = golden_arrays(spec), drawn_to_the_end(spec)
    assert len(requests) > 20
    for key, values in {
        "arrival_us": [request.arrival_us for request in requests],
        "client": [request.client for request in requests],
        "round_index": [request.round_index for request in requests],
        "output_len": [len(request.output) for request in requests],
        "input_len": [sum(map(len, request.prompt)) for request in requests],
    }.items():
        assert arrays[key].tolist() == values, key


def test_ties_go_to_the_earlier_client():
    arrays = golden_arrays(SPECS["ties"])
    assert arrays["client"][:6].tolist() == [0, 1, 2, 0, 1, 2]
    assert len(set(arrays["arrival_us"][:3])) == 1


def test_the_cap_ends_sessions():
    """80 requests of the first client are 20 sessions; the other, a slow one, sends the rest."""
    client_of = golden_arrays(SPECS["capped sessions"])["client"]
    assert np.array_equal(np.flatnonzero(client_of == 0), np.arange(20))
    assert len(client_of) == 40


def test_requests_lie_in_the_windows_and_before_the_horizon():
    spans = np.array([[1000, 9000], [15000, 99000]])
    arrivals = golden_arrays(SPECS["windows alone"])["arrival_us"]
    inside = (arrivals[:, None] >= spans[:, 0]) & (arrivals[:, None] < spans[:, 1])
    assert inside.any(axis=1).all()
    arrays = golden_arrays(SPECS["horizon"])
    assert arrays["arrival_us"][arrays["round_index"] == 0].max() < 70_000
    assert arrays["arrival_us"].max() > 70_000  # a session that has begun is drawn whole


def streams_of(spec, num_clients=1, prefix=0):
    """The streams of the clients, from the master stream that has drawn the prefixes."""
    master = Stream(subsystem_seed(spec.seed, "workload-gen"))
    tokens = master.intn_vector(VOCABULARY, prefix)
    return tokens, [Stream(master.int63()) for _ in range(num_clients)]


def test_draw_order_of_a_plain_request():
    spec = spec_of(client("a", "prefix_group: p"), client("b"))
    arrays = golden_arrays(spec, block_size=1)
    _, (stream, _) = streams_of(spec, 2, prefix=50)
    gap_us = int(stream.exp_float64() / (1000.0 * 0.5 / 1e6))
    num_inputs = round(stream.exp_float64() * 20)
    num_outputs = round(stream.exp_float64() * 20)
    row = int(np.argmax(arrays["client"] == 0))
    assert arrays["arrival_us"][row] == gap_us
    assert arrays["input_len"][row] == 50 + num_inputs
    assert arrays["output_len"][row] == num_outputs
    stream.intn_vector(VOCABULARY, num_inputs + num_outputs)
    second = row + 1 + int(np.argmax(arrays["client"][row + 1 :] == 0))
    assert arrays["arrival_us"][second] == gap_us + int(stream.exp_float64() / 5e-4)


MULTIMODAL = """multimodal:
      text_distribution: {type: exponential, params: {mean: 9}}
      image_distribution: {type: exponential, params: {mean: 30}}
      image_count_distribution: {type: gaussian, params: {mean: 2, std_dev: 1, min: 0, max: 4}}
      audio_distribution: {type: constant, params: {value: 1000}}
      video_distribution: {type: exponential, params: {mean: 10}}
      video_count_distribution: {type: constant, params: {value: 2}}"""


def test_draw_order_of_a_multimodal_request():
    """Text, images (count first), audio without a count not at all, video; output after tokens."""
    spec = spec_of(client("a", MULTIMODAL))
    arrays = golden_arrays(spec)
    _, (stream,) = streams_of(spec)
    for row in range(3):
        stream.exp_float64()
        total = max(round(stream.exp_float64() * 9), 1)
        num_images = max(round(min(4.0, max(0.0, stream.norm_float64() + 2))), 1)
        for mean in [30] * num_images + [10] * 2:
            total += max(round(stream.exp_float64() * mean), 1)
        stream.intn_vector(VOCABULARY, total)
        num_outputs = max(round(stream.exp_float64() * 20), 1)
        stream.intn_vector(VOCABULARY, num_outputs)
        assert (arrays["input_len"][row], arrays["output_len"][row]) == (total, num_outputs)


def test_multimodal_prompts_without_parts_have_one_token():
    arrays = golden_arrays(spec_of(client("a", "multimodal: {}")))
    assert np.all(arrays["input_len"] == 1)


def test_draw_order_of_a_session_with_reason_ratios():
    ratio = "reason_ratio_distribution: {type: exponential, params: {mean: 30}}"
    turns = "multi_turn: {max_rounds: 2, think_time_us: 7, context_growth: accumulate}"
    spec = spec_of(client("a", f"reasoning: {{{ratio}, {turns}}}"))
    arrays = golden_arrays(spec)
    _, (stream,) = streams_of(spec)
    start_us = int(stream.exp_float64() / (1000.0 / 1e6))
    stream.int63()
    lengths = []
    for _ in range(2):
        lengths.append([max(round(stream.exp_float64() * 20), 1) for _ in range(2)])
        stream.intn_vector(VOCABULARY, sum(lengths[-1]))
        stream.exp_float64()
    in_session = np.flatnonzero(arrays["session"] == 0)
    assert arrays["input_len"][in_session].tolist() == [
        lengths[0][0],
        sum(lengths[0]) + lengths[1][0],
    ]
    assert arrays["output_len"][in_session].tolist() == [lengths[0][1], lengths[1][1]]
    assert arrays["arrival_us"][in_session].tolist() == [start_us, start_us + 7 + lengths[0][1]]


def test_reason_ratio_without_sessions_draws_nothing():
    ratio = "reasoning: {reason_ratio_distribution: {type: exponential, params: {mean: 30}}}"
    with_ratio, without = (
        golden_arrays(spec_of(client("a", ratio))),
        golden_arrays(spec_of(client("a"))),
    )
    assert np.array_equal(with_ratio["arrival_us"], without["arrival_us"])


def test_sessions_are_not_multimodal():
    turns = "reasoning: {multi_turn: {max_rounds: 2, think_time_us: 7}}"
    plain = golden_arrays(spec_of(client("a", turns)))
    both = golden_arrays(spec_of(client("a", f"{turns}\n    {MULTIMODAL}")))
    assert np.array_equal(plain["input_len"], both["input_len"])


def test_sessions_without_growth_forget():
    turns = "reasoning: {multi_turn: {max_rounds: 3, think_time_us: 7}}"
    fixed = "{type: constant, params: {value: 32}}"
    arrays = golden_arrays(spec_of(client("a", turns, lengths=fixed)))
    assert set(arrays["input_len"]) == {32}
    assert arrays["block_ids_delta"].size == len(set(np.cumsum(arrays["block_ids_delta"])))


def test_prefixes_are_shared_by_a_group_and_sized_by_its_first_client():
    fixed = "{type: constant, params: {value: 16}}"
    spec = spec_of(
        client("a", "prefix_group: p", lengths=fixed),
        client("b", "prefix_group: p\n    prefix_length: 99", lengths=fixed),
        client("c", "prefix_group: q\n    prefix_length: 32", lengths=fixed),
        client("d", lengths=fixed),
    )
    arrays = golden_arrays(spec)
    lengths = {row: set(arrays["input_len"][arrays["client"] == row]) for row in range(4)}
    assert lengths == {0: {66}, 1: {66}, 2: {48}, 3: {16}}
    ids, starts = np.cumsum(arrays["block_ids_delta"]), arrays["block_ptr"][:-1]
    first_block = {row: set(ids[starts[arrays["client"] == row]]) for row in range(4)}
    assert first_block[0] == first_block[1] and len(first_block[0]) == len(first_block[2]) == 1
    assert first_block[0] != first_block[2]
    assert len(first_block[3]) == (arrays["client"] == 3).sum()


def test_rate_fractions_are_relative():
    halves = spec_of(client("a", fraction=0.5), client("b", fraction=0.5))
    wholes = spec_of(client("a", fraction=7.0), client("b", fraction=7.0))
    assert np.array_equal(golden_arrays(halves)["arrival_us"], golden_arrays(wholes)["arrival_us"])


def test_another_seed_gives_other_requests_and_the_same_seed_the_same():
    spec = SPECS["poisson"]
    table, names = draw(spec)
    again, other = draw(spec, 5)[0], draw(spec, -6)[0]
    assert np.array_equal(table.arrival_us, again.arrival_us)
    assert not np.array_equal(table.arrival_us, other.arrival_us)
    assert names.tenant_names == ("",)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (spec_of(client("a"), top=""), ["num_requests", "horizon"]),
        (
            spec_of(
                client(
                    "a", lengths="{type: gaussian, params: {mean: 3, std_dev: 1, min: 0, max: 0}}"
                )
            ),
            ["clients[0].input_distribution", "1 token or more"],
        ),
        (spec_of(client("a"), rate=1e-9, top="num_requests: 2000"), ["aggregate_rate", "2^60"]),
        (
            spec_of(client("a", lengths=f"{{type: constant, params: {{value: {MOST_TOKENS}}}}}")),
            [str(MOST_TOKENS), "num_requests"],
        ),
        (
            spec_of(client("a", lengths="{type: constant, params: {value: 2147483647}}")),
            ["2147483647", "tail"],
        ),
    ],
)
def test_workloads_that_cannot_be_drawn_end_in_one_sentence(spec, words, monkeypatch):
    monkeypatch.setattr(
        "blis_jax.workload.go_random.Stream.intn_vector",
        lambda stream, limit, count: np.broadcast_to(np.int32(0), count),
    )
    with pytest.raises(ConfigError) as caught:
        golden_arrays(spec)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


# Closed-loop sessions and pools of users on tiny scenes, each beside its twin


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
    asked, first = follow_ups(workload), workload.requests[0]
    second = asked.after(first, 5_000_000)
    assert (second.arrival_us, second.round_index) == (5_001_000, 1)
    assert second.session == first.session and second.deadline_us == 305_001_000
    third = asked.after(second, 6_000_000)
    assert third.round_index == 2
    assert asked.after(third, 7_000_000) is None


def test_a_session_ends_with_a_request_that_does_not_complete():
    workload = drawn(chat(), 1)
    asked, first = follow_ups(workload), workload.requests[0]
    asked.ends(first)
    assert asked.after(first, 5_000_000) is None
    assert asked.after(workload.requests[1], 5_000_000) is not None


def test_no_round_arrives_after_the_horizon():
    for horizon, follows in ((5_001_000, True), (5_000_999, False)):
        workload = drawn(chat(top=f"horizon: {horizon}"), 1)
        later = follow_ups(workload).after(workload.requests[0], 5_000_000)
        assert (later is not None) == follows


def test_growing_prompts_hold_what_was_generated():
    workload = drawn(chat(turns=", context_growth: accumulate"), 1)
    first = workload.requests[0]
    for count in (generated(first), 2):
        second = follow_ups(workload).after(first, 0, count)
        (prompt,) = second.prompt
        assert len(prompt) == 20 + count + 20
        assert np.array_equal(prompt[:20], first.prompt[0])
        assert np.array_equal(prompt[20 : 20 + count], first.output[:count])
    plain = drawn(chat(), 1)
    assert follow_ups(plain).after(plain.requests[0], 0).input_len == 20


def test_later_rounds_take_the_prefix_if_the_file_says_how_long_it_is():
    for length, later_len in ((32, 52), (0, 20)):
        workload = drawn(chat(f"prefix_group: g\n    prefix_length: {length}"), 1)
        first = workload.requests[0]
        assert first.input_len == (length or 50) + 20 and first.prefix_len == (length or 50)
        second = follow_ups(workload).after(first, 0)
        assert second.input_len == later_len
        assert np.array_equal(second.prompt[0][:length], first.prompt[0][:length])


def test_a_prefix_longer_than_the_groups_holds_tokens_of_the_clients_first_session():
    """As in BLIS, which takes a client's prefix off the first prompt that the client has sent."""
    one = chat("prefix_group: g\n    prefix_length: 32", ", context_growth: accumulate")
    two = one.clients[0].model_copy(update={"id": "b", "prefix_length": 37})
    workload = drawn(one.model_copy(update={"clients": (*one.clients, two)}), 1)
    assert len({first.session for first in workload.requests}) > 2
    for client, length in ((0, 32), (1, 37)):
        firsts = [request for request in workload.requests if request.client == client]
        shared = np.concatenate(firsts[0].prompt)[:length]
        for first in firsts:
            prompt, asked = np.concatenate(first.prompt), follow_ups(workload)
            (later,) = asked.after(first, 0).prompt
            assert np.array_equal(later[: len(prompt)], np.append(shared, prompt[length:]))
            assert len(prompt) == 32 + 20


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
    asked, request = follow_ups(workload), workload.requests[2]
    for turn in range(6):
        request = asked.after(request, 100 * turn)
        assert request.round_index == turn + 1
    assert asked.after(request, 1000) is None
    assert asked.after(workload.requests[0], 1000) is None
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
    assert loop.budget == loop.table.num_rows and loop.horizon_us == NEVER_US - 1
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
