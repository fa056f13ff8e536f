"""Closed-loop sessions: a run whose arrivals are those that its own completions bring."""

import heapq
import re

import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.records.record import Status
from blis_jax.runs.closed_loop import _following, simulate_closed_loop
from blis_jax.workload.reference import drawn
from blis_jax.workload.reference.follow_up_table import NO_PARENT, closed_loop_table
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import parse_spec
from blis_jax.workload.table import NEVER_US
from tests.support.follow_ups import follow_ups

pytestmark = pytest.mark.lenient_promotion  # the engine adds flags to counts

LAWS = """
    input_distribution: {type: gaussian, params: {mean: 60, std_dev: 30, min: 4, max: 200}}
    output_distribution: {type: gaussian, params: {mean: 9, std_dev: 4, min: 2, max: 20}}"""
CHAT = f"""
version: "2"
seed: 3
aggregate_rate: 40
num_requests: 24
clients:
  - id: a
    rate_fraction: 1
    arrival: {{process: poisson}}{LAWS}
    prefix_group: g
    prefix_length: 32
    reasoning: {{multi_turn: {{max_rounds: 4, think_time_us: 90000, context_growth: accumulate}}}}
"""
POOL = f"""
version: "2"
seed: 3
num_requests: 40
clients:
  - id: u
    concurrency: 5
    think_time_us: 2000{LAWS}
"""
CLUSTER = ClusterConfig(num_instances=2, max_num_running_reqs=6)


def workload_of(text):
    return drawn(parse_spec(text, revision=REVISED))


def asked_for(workload, record):
    """The requests that the interface gives when it is told the record's completions, one by one."""
    requests_after, arrived, running = follow_ups(workload), [], []
    waiting = [(one.arrival_us, index, one) for index, one in enumerate(workload.requests)]
    num_asked = len(waiting)
    heapq.heapify(waiting)
    while waiting or running:
        if waiting and (not running or waiting[0][0] <= running[0][0]):
            request = heapq.heappop(waiting)[2]
            if record.requests.status[len(arrived)] == Status.COMPLETED:
                end_us = int(record.requests.left_us[len(arrived)])
                heapq.heappush(running, (end_us, len(arrived), request))
            arrived.append(request)
            continue
        end_us, _, request = heapq.heappop(running)
        later = requests_after.after(request, end_us)
        if later is not None:
            heapq.heappush(waiting, (later.arrival_us, num_asked, later))
            num_asked += 1
    return arrived


@pytest.mark.parametrize("text", [CHAT, POOL, CHAT.replace("num_requests: 24", "horizon: 400000")])
def test_every_arrival_is_what_the_completions_bring(text):
    workload = workload_of(text)
    run = simulate_closed_loop(CLUSTER, workload)
    assert run.record.outcome in (Outcome.COMPLETED, Outcome.HORIZON)
    expected, found = asked_for(workload, run.record), run.arrived()
    assert len(found) == len(expected) > len(workload.requests)
    for mine, theirs in zip(found, expected, strict=True):
        assert (mine.arrival_us, mine.session, mine.round_index, mine.deadline_us) == (
            theirs.arrival_us,
            theirs.session,
            theirs.round_index,
            theirs.deadline_us,
        )
        assert np.array_equal(np.concatenate(mine.prompt), np.concatenate(theirs.prompt))
    assert run.record.requests.arrival_us.tolist() == [one.arrival_us for one in expected]
    assert run.num_passes > 2


def test_a_pool_keeps_its_number_of_requests_and_sends_all():
    run = simulate_closed_loop(CLUSTER, workload_of(POOL))
    requests = run.record.requests
    assert len(requests.arrival_us) == 40
    in_flight = [
        int(np.sum((requests.arrival_us <= time) & (requests.left_us > time)))
        for time in requests.arrival_us
    ]
    assert max(in_flight) == 5


@pytest.mark.parametrize("corrected", [False, True])
def test_without_the_defects_users_wait_for_all_of_their_answer(corrected):
    """As many users as there are: throughput times (E2E + think time) is their number, by Little's law."""
    config = ClusterConfig(
        corrected=corrected, alpha_coeffs=(200.0, 1.0, 3000.0), beta_coeffs=(5000.0, 10.0, 6.0)
    )
    run = simulate_closed_loop(config, workload_of(POOL))
    requests, loop = run.record.requests, run.loop
    place = {row: at for at, row in enumerate(run.rows.tolist())}
    later = [at for row, at in place.items() if loop.parent[row] != NO_PARENT]
    before = [place[int(loop.parent[run.rows[at]])] for at in later]
    ends_us = requests.arrival_us[before] + requests.e2e_us[before]
    waited_us = requests.arrival_us[later] - ends_us
    if corrected:
        assert set(waited_us.tolist()) == {2000}
    else:
        assert waited_us.max() < 0


def test_ids_count_the_requests_that_completions_brought():
    run = simulate_closed_loop(CLUSTER, workload_of(POOL))
    ids = run.request_ids()
    assert ids[:5] == [f"request_{number}" for number in range(5)]
    assert sorted(int(name.rsplit("_", 1)[1]) for name in ids[5:]) == list(range(1, 36))
    assert ids[5].startswith("session_concurrency_u_user_") and "_round_1_" in ids[5]


def test_a_request_that_does_not_complete_ends_its_session():
    loop = closed_loop_table(workload_of(CHAT))
    completed_us = np.full(loop.table.num_rows, -1)
    completed_us[0] = 5_000_000
    arrivals = _following(loop, completed_us, np.zeros(loop.table.num_rows, int))
    (came,) = np.flatnonzero((loop.parent != NO_PARENT) & (arrivals.time_us != NEVER_US))
    assert loop.parent[came] == 0 and arrivals.time_us[came] == 5_090_000


def test_a_table_that_is_too_short_is_made_longer():
    """One fast user takes more than twice the mean of the rounds."""
    slow = LAWS.replace(
        "mean: 9, std_dev: 4, min: 2, max: 20", "mean: 900, std_dev: 0, min: 900, max: 900"
    )
    text = POOL.replace("concurrency: 5", "concurrency: 1").replace(
        "num_requests: 40", "num_requests: 60"
    )
    text += f"""
  - id: slow
    concurrency: 3
    think_time_us: 2000{slow}
"""
    workload = workload_of(text)
    run = simulate_closed_loop(CLUSTER, workload)
    assert len(run.rows) == 60
    assert int(np.max(run.loop.table.round_index[run.rows])) > 36  # twice the mean, and eight
    assert [one.session for one in run.arrived()] == [
        one.session for one in asked_for(workload, run.record)
    ]


def test_users_may_send_until_the_horizon():
    workload = workload_of(POOL.replace("num_requests: 40", "horizon: 1500000"))
    run = simulate_closed_loop(CLUSTER, workload)
    found = run.arrived()
    assert len(found) == len(asked_for(workload, run.record)) > 16 * 5
    assert max(one.arrival_us for one in found) <= 1_500_000


def test_the_next_rounds_of_one_step_come_in_the_order_of_the_scheduler():
    """Two users complete together; BLIS of August brings the shorter prompt's next round first."""
    law = "_distribution: {type: constant, params: {value: "
    users = [
        f"  - {{id: {name}, concurrency: 1, input{law}{length}}}}}, output{law}5}}}}}}"
        for name, length in (("a", 60), ("b", 50))
    ]
    text = "\n".join(['version: "2"', "seed: 3", "num_requests: 4", "clients:", *users])
    for scheduler, order in (("sjf", [1, 0]), ("fcfs", [0, 1])):
        config = ClusterConfig(
            num_instances=1, scheduler=scheduler, alpha_coeffs=(1000.0, 0.0, 0.0)
        )
        run = simulate_closed_loop(config, workload_of(text))
        assert run.record.requests.arrival_us[2] == run.record.requests.arrival_us[3]
        assert [one.client for one in run.arrived()][2:] == order
        assert [name.rsplit("_", 1)[1] for name in run.request_ids()[2:]] == ["1", "2"]


LAW = "{type: constant, params: {value: %d}}"
ONE_LENGTH = f"input_distribution: {LAW % 50}, output_distribution: {LAW % 5}"
TWELVE_USERS = f"clients:\n  - {{id: a, concurrency: 12, {ONE_LENGTH}}}"
TURNS = f"""aggregate_rate: 1000
clients:
  - {{id: a, slo_class: batch, rate_fraction: 1, arrival: {{process: constant}}, {ONE_LENGTH}, reasoning:
      {{reason_ratio_distribution: {LAW % 0}, multi_turn: {{max_rounds: 2, think_time_us: 0, context_growth: ""}}}}}}"""


@pytest.mark.parametrize(
    ("clients", "parents"),
    [(TWELVE_USERS, [0, 1, 10, 11, 2, 3, 4, 5, 6, 7, 8, 9]), (TURNS, list(range(12)))],
    ids=["of one arrival", "one after the other"],
)
def test_of_prompts_of_one_length_the_earlier_goes_on_first_then_by_the_text_of_ids(
    clients: str, parents: list[int]
):
    """Under sjf; which first rounds bring the others, one by one, is BLIS's."""
    text = f'version: "2"\nseed: 3\nnum_requests: 24\n{clients}\n'
    config = ClusterConfig(
        revision=AUGUST, model="meta-llama/llama-3.1-8b-instruct", scheduler="sjf"
    )
    run = simulate_closed_loop(config, workload_of(text))
    sessions = [request.session for request in run.arrived()]
    by_creation = np.argsort(run.num_created[12:], kind="stable") + 12
    assert [sessions.index(sessions[row]) for row in by_creation] == parents


@pytest.mark.slow
def test_an_answer_of_one_token_on_a_decode_instance_is_in_the_next_prompt():
    """The prompt lengths of BLIS of August, whose rounds without pools are a token shorter."""
    text = CHAT.replace("num_requests: 24", "num_requests: 3")
    text = re.sub("_distribution: .*mean: 60.*", "_distribution: CONST50}}", text)
    text = re.sub("_distribution: .*mean: 9,.*", "_distribution: CONST1}}", text)
    text = text.replace("CONST", "{type: constant, params: {value: ")
    text = text.replace("max_rounds: 4, think_time_us: 90000", "max_rounds: 3, think_time_us: 9000")
    text = text.replace("    prefix_group: g\n    prefix_length: 32\n", "")
    cluster = ClusterConfig(
        revision=AUGUST,
        model="meta-llama/llama-3.1-8b-instruct",
        hardware="H100",
        num_instances=2,
        prefill_instances=1,
        decode_instances=1,
        pd_decider="always",
    )
    workload = drawn(parse_spec(text, revision=REVISED))
    run = simulate_closed_loop(cluster, workload)
    assert run.record.requests.input_len.tolist() == [50, 101, 152]
