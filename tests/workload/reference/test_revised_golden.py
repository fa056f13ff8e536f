"""Every recorded workload of August 2026 drawn again; follow-ups from the recorded completions."""

import heapq
import json

import numpy as np
import pytest

from blis_jax.workload.reference.arrays import request_arrays
from blis_jax.workload.reference.follow_up_table import NO_PARENT, closed_loop_table
from blis_jax.workload.table import NEVER_US
from tests.support.follow_ups import follow_ups
from tests.support.recorded.revised_data import (
    CLOSED_LOOP,
    COMMANDS,
    FOLDER,
    OPEN_LOOP,
    drawn_again,
    recorded,
    texts,
)

ARRAYS = (
    *("arrival_us", "input_len", "output_len", "max_output_len", "slo_class", "round_index"),
    *("deadline_us", "prefix_length", "multimodal", "session", "block_ptr", "block_ids_delta"),
)
SCENARIOS = {
    command["scenario"]: name
    for name, command in COMMANDS.items()
    if (FOLDER / "scenarios" / f"{command['scenario']}.npz").exists()
}


def assert_equal(mine, theirs):
    for name in ARRAYS:
        assert np.array_equal(mine[name], theirs[name]), name
    for name in ("tenant", "client", "prefix_group"):
        assert texts(mine, name) == texts(theirs, name), name


@pytest.mark.parametrize("name", OPEN_LOOP)
def test_drawn_arrays_equal_the_recorded_ones(name):
    theirs, workload = recorded(name), drawn_again(name)
    assert not workload.sessions
    mine = request_arrays(workload.clients, workload.requests, int(theirs["block_size"]))
    assert_equal(mine, theirs)
    assert np.array_equal(mine["id_rank"], theirs["id_rank"])


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_completions_bring_the_recorded_follow_ups(scenario):
    """Asked in the order of the recorded completions, the interface gives every recorded request."""
    name = SCENARIOS[scenario]
    theirs, workload = recorded(name), drawn_again(name)
    with np.load(FOLDER / "scenarios" / f"{scenario}.npz") as file:
        completed_us = file["completed_at_us"]
    asked, rows = follow_ups(workload), []
    waiting = [(one.arrival_us, index, one) for index, one in enumerate(workload.requests)]
    running: list = []
    num_asked = len(waiting)
    heapq.heapify(waiting)
    while waiting or running:
        if waiting and (not running or waiting[0][0] <= running[0][0]):
            _, _, request = heapq.heappop(waiting)
            assert request.arrival_us == theirs["arrival_us"][len(rows)]
            heapq.heappush(running, (int(completed_us[len(rows)]), len(rows), request))
            rows.append(request)
            continue
        end_us, _, request = heapq.heappop(running)
        later = asked.after(request, end_us)
        if later is not None:
            heapq.heappush(waiting, (later.arrival_us, num_asked, later))
            num_asked += 1
    assert_equal(request_arrays(workload.clients, rows, 16), theirs)


@pytest.mark.parametrize("name", CLOSED_LOOP)
def test_the_table_holds_every_recorded_round(name):
    theirs, workload = recorded(name), drawn_again(name)
    loop = closed_loop_table(workload)
    table = loop.table
    is_first = theirs["round_index"] == 0
    injected = loop.parent == NO_PARENT
    assert np.array_equal(table.arrival_us[injected], theirs["arrival_us"][is_first])
    assert np.all(table.arrival_us[~injected] == NEVER_US)
    by_round = {
        (int(session), int(turn)): row
        for row, (session, turn) in enumerate(zip(table.session, table.round_index, strict=True))
    }
    places = [
        by_round[int(session), int(turn)]
        for session, turn in zip(theirs["session"], theirs["round_index"], strict=True)
        if session >= 0
    ]
    is_round = theirs["session"] >= 0
    assert np.array_equal(table.input_len[places], theirs["input_len"][is_round])
    assert np.array_equal(table.output_len[places], theirs["output_len"][is_round])
    timeouts = (theirs["deadline_us"] - theirs["arrival_us"])[is_round]
    assert np.array_equal(loop.timeout_us[places], timeouts)
    for session, turn in list(by_round)[: len(places)]:
        if turn:
            assert loop.parent[by_round[session, turn]] == by_round[session, turn - 1]
    order = np.argsort(np.argsort(loop.id_rank[places]))
    assert np.array_equal(order, np.argsort(np.argsort(theirs["id_rank"][is_round])))


def test_closed_loops_are_told_from_open_ones():
    assert len(CLOSED_LOOP) == 9 and len(OPEN_LOOP) == 39
    assert set(json.loads((FOLDER / "commands.json").read_text())) == {*CLOSED_LOOP, *OPEN_LOOP}
