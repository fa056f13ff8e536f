"""Figures of simulated requests, what a client sees, intervals, and tables of requests."""

import math

import numpy as np
import pytest

from blis_jax.latency.deployment import gpu_description
from papers.real_servers.predict.figures import (
    NOTHING,
    ClientView,
    chosen_of,
    figure,
    part_of,
    predicted,
    seen,
)
from papers.real_servers.predict.learned import (
    Learned,
    SeenRuns,
    from_document,
    learned,
    to_document,
    usual_pace,
)
from papers.real_servers.predict.scene import (
    AskedCell,
    ClosedLoad,
    LoadStage,
    RealServer,
    Scene,
    ServerPool,
    StagedLoad,
)
from papers.real_servers.predict.simulation import (
    SimulatedRequests,
    closed_loop,
    config_of,
    staged_table,
)

SERVER = RealServer("qwen/qwen3-14b", "H100")
SCENE = Scene(SERVER, StagedLoad((LoadStage(2.0, 3.0), LoadStage(4.0, 1.0)), 3, 40, 11))
REQUESTS = SimulatedRequests(
    np.array([0.0, 1.0, 3.0, 3.5]),
    np.array([10.0, 20.0, 30.0, 40.0]),
    np.array([110.0, 120.0, 130.0, 140.0]),
    np.full(4, 10.0),
    11,
    np.zeros(4, int),
)


def test_figures_by_hand():
    everything = np.ones(4, bool)
    assert figure("ttft_mean", REQUESTS, everything) == 25
    assert figure("e2e_p50", REQUESTS, everything) == 125
    assert figure("tpot_mean", REQUESTS, everything) == 10
    assert figure("req_s", REQUESTS, everything) == pytest.approx(4 / 3.64)
    assert figure("ttft_p99", REQUESTS, chosen_of(SCENE, REQUESTS, 1)) == pytest.approx(39.9)
    tokens = predicted(SCENE, REQUESTS, AskedCell(0, "tok_s", "tok_s"), NOTHING)
    assert tokens == pytest.approx(51 * 4 / 3.64)


def test_what_a_client_sees():
    client = ClientView(2.0, 1.5, 0.5, 2.0, 3.0, {"ttft_p99/later": 2.0})
    found = seen(REQUESTS, client)
    np.testing.assert_allclose(found.itl_ms, 30)
    np.testing.assert_allclose(found.ttft_ms, 2 * (REQUESTS.ttft_ms + 2 + 45))
    np.testing.assert_allclose(found.e2e_ms, found.ttft_ms + 4.5 * 30)
    assert np.array_equal(seen(REQUESTS, NOTHING).e2e_ms, REQUESTS.e2e_ms)
    cell = AskedCell(0, "actual", "ttft_p99", 1)
    alone = predicted(SCENE, REQUESTS, cell, ClientView(2.0, 1.5, 0.5, 2.0, 3.0))
    assert predicted(SCENE, REQUESTS, cell, client) == pytest.approx(2 * alone)


def test_parts_of_a_run():
    assert [part_of(SCENE, stage) for stage in (None, 0, 1)] == ["all", "first", "later"]
    alone = Scene(SERVER, StagedLoad((LoadStage(2.0, 3.0),), 3, 40, 11))
    assert [part_of(alone, stage) for stage in (None, 0)] == ["first", "first"]
    assert part_of(Scene(SERVER, ClosedLoad(2, 1, 1)), None) == "all"


def test_staged_requests_come_at_constant_gaps_with_the_prompts_of_their_users():
    table = staged_table(SCENE.load)
    assert table.arrival_us.tolist() == [
        *(500_000 * np.arange(6)).tolist(),
        *(3_000_000 + 250_000 * np.arange(4)).tolist(),
    ]
    assert table.path_nodes[:, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert table.node_blocks.tolist() == [2, 2, 2]
    short = staged_table(StagedLoad((LoadStage(2.0, 3.0),), 3, 15, 11))
    assert short.num_nodes == 0 and set(short.path_nodes[:, 0].tolist()) == {-1}


def test_a_closed_loop_brings_every_users_next_request():
    loop = closed_loop(ClosedLoad(3, 20, 5, 2))
    assert loop.parent.tolist() == [-1, -1, -1, 0, 1, 2]
    assert (loop.table.arrival_us[:3] == 0).all() and loop.table.round_index.tolist() == [0] * 3 + [
        1
    ] * 3


def test_the_fitted_server_counts_kv_memory_once():
    one, two = (
        config_of(
            RealServer("qwen/qwen3-14b", "H100", tp), learned("vllm_runs", "fitted").beta
        ).total_kv_blocks
        for tp in (1, 2)
    )
    per_block = 16 * 40 * 2 * 8 * 128 * 2
    assert two * per_block < 2 * 80 * 2**30 and two > 2 * one
    assert config_of(SERVER, None).is_august


def test_pools_in_the_engine():
    pools = (ServerPool("prefill", 2, 4), ServerPool("decode", 1, 8))
    server = RealServer("meta-llama/llama-3.1-70b", "H100", 8, 3, pools=pools)
    ours = config_of(server, learned("llmd_runs", "fitted").beta)
    assert [group.role for group in ours.instances] == ["prefill", "decode"]
    assert [group.tp for group in ours.instances] == [4, 8] and ours.num_instances == 3
    assert ours.hand_over_policy == "pools"
    assert dict(ours.policy_numbers)["hand_over.kv_bytes_per_token"] == 80 * 2 * 8 * 128 * 2
    august = config_of(server, None)
    assert (august.prefill_instances, august.decode_instances) == (2, 1)
    assert (august.prefill_tp, august.decode_tp, august.pd_decider) == (4, 8, "always")


def test_intervals_are_those_of_what_was_not_seen():
    fit = Learned(
        (1.0,) * 10, {"A100-80": 2.0}, NOTHING, SeenRuns.of([Scene(RealServer("a/b", "H100"), SCENE.load)]),
        {"ttft_mean": {"same": 0.1, "other_model": 0.2, "other_hardware": 0.3}},
    )  # fmt: skip

    def half(model, gpu):
        scene = Scene(RealServer(model, gpu), SCENE.load)
        low, high = fit.interval("ttft_mean", 50.0, scene)
        assert low * high == pytest.approx(2500)
        return math.log(high / 50)

    assert half("A/B", "H100") == pytest.approx(0.1)
    assert half("c/d", "H100") == pytest.approx(0.2)
    assert half("a/b", "L40S") == pytest.approx(0.3)
    assert half("c/d", "L40S") == pytest.approx(math.hypot(0.2, 0.3))
    known = Scene(RealServer("a/b", "H100"), SCENE.load)
    assert math.isnan(fit.interval("itl_mean", 1.0, known)[0])
    assert fit.beta_on("A100-80")[-1] == 2.0 and fit.beta_on("H100")[-1] == 1.0
    assert fit.beta_on("L40S")[-1] == usual_pace(gpu_description("L40S")) > 1


def test_what_is_shipped_can_be_read_and_comes_back():
    for collection in ("vllm_runs", "llmd_runs", "inferencex"):
        for model in ("fitted", "trained-physics"):
            fit = learned(collection, model)
            assert from_document(to_document(fit)) == fit
    scene = Scene(RealServer("some/model", "H100"), SCENE.load)
    low, high = learned("vllm_runs", "fitted").interval("e2e_mean", 100.0, scene)
    assert 50 < low < 95 and 105 < high < 200
