"""Closed loops in segments: by hand, and against the engine."""

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.latency.served_physics import ServedNumbers
from papers.real_servers.predict.scene import ClosedLoad, RealServer, Scene, ServerPool
from papers.real_servers.predict.segments import LoopInstance, Request, run_loop
from papers.real_servers.predict.simulation import LoopView, lengths, simulated, simulated_loop

# every step 100 µs, each token of a prompt 1 µs, each decode 10 µs, each token of context 0.01 µs
NUMBERS = ServedNumbers(100.0, 0.0, 0.0, 0.0, 0.01, 10.0, 0.0, 1.0, 0.0)


def instance(memory=10_000, budget=1000, running=8):
    return LoopInstance(NUMBERS, running, budget, memory)


def test_one_request_by_hand():
    one = Request(0.0, 1500, 3)
    run_loop([instance()], [one], 1, entry_us=7.0)
    assert one.first == 7 + (100 + 1000) + (100 + 500)  # two chunks
    decode = 100 + max(0.0, 1.0) + 10  # a step's arithmetic is that of its tokens
    assert one.end - one.first == pytest.approx(2 * decode + 15 + 15.01)


def test_the_cached_part_of_a_prompt_is_not_computed():
    one, other = Request(0.0, 500, 1, cached=480), Request(0.0, 500, 1)
    run_loop([instance()], [one], 1)
    run_loop([instance()], [other], 1)
    assert (one.end, other.end) == (120, 600)


def test_an_arrival_ends_the_segment_with_the_step_under_way():
    long, short = Request(0.0, 100, 200), Request(0.0, 100, 2)
    late = Request(0.0, 100, 1)
    server = instance()
    run_loop([server], [long, short, late], 2)
    assert late.arrival == short.end
    assert late.first - late.arrival == pytest.approx(100 + 101 + 10 + 1.02, abs=0.1)
    assert server.held == 0 and server.context == 0 and server.load == 0


def test_requests_wait_for_memory_and_the_last_is_preempted():
    requests = [Request(0.0, 100, 60) for _ in range(3)]
    run_loop([instance(memory=240)], requests, 3)
    first, second, third = requests
    assert third.first > min(first.end, second.end)  # two prompts fit
    assert second.end > first.end  # preempted when both have grown
    assert first.output == 59 and min(second.output, third.output) < 59  # what was left then
    with pytest.raises(ConfigError, match="does not fit into the KV memory of 150 tokens"):
        run_loop([instance(memory=150)], [Request(0.0, 100, 60)], 1)


def test_every_request_gets_an_instance_at_random():
    servers = [instance(), instance()]
    run_loop(servers, [Request(0.0, 100, 5) for _ in range(40)], 2, seed=1)
    shares = [server.admissions for server in servers]
    assert shares != [20, 20] and sum(shares) == 40 and min(shares) > 5


def test_lengths_are_drawn_evenly_below_the_given_ones():
    prompts, outputs = lengths(ClosedLoad(100, 1000, 10, shortest=0.8), 0)
    assert 800 <= min(prompts) < 810 and 990 < max(prompts) <= 1000
    assert set(outputs) == {8, 9, 10}
    assert lengths(ClosedLoad(2, 7, 5), 0) == ([7] * 20, [5] * 20)


def test_instances_of_pools_serve_whole_requests():
    pools = (ServerPool("prefill", 1, 4), ServerPool("decode", 1, 4))
    load = ClosedLoad(2, 500, 20, rounds=2)
    beta = (1.1, 1.5, 60.0, 2.0, 20.0, 30.0, 40.0, 300.0, 1.8, 1.0)
    split = RealServer("meta-llama/llama-3.1-70b", "H100", 4, 2, pools=pools)
    equal = RealServer("meta-llama/llama-3.1-70b", "H100", 4, 2)
    one, other = (simulated_loop(Scene(each, load), beta, LoopView()) for each in (split, equal))
    np.testing.assert_array_equal(one.e2e_ms, other.e2e_ms)
    with pytest.raises(ConfigError, match="pools must have the roles"):
        RealServer("m", "H100", pools=pools[:1])
    with pytest.raises(ConfigError, match="the role prefill or decode"):
        ServerPool("encode", 1, 1)


@pytest.mark.slow
def test_segments_are_near_the_engine():
    """One instance, equal lengths, no delay before the queue: then nothing is drawn at random."""
    beta = (1.1, 1.5, 60.0, 2.0, 20.0, 30.0, 40.0, 300.0, 1.8, 1.0)
    server = RealServer("qwen/qwen3-14b", "H100", 1, max_num_scheduled_tokens=8192)
    scene = Scene(server, ClosedLoad(8, 1000, 100, rounds=4))
    ours = simulated_loop(scene, beta, LoopView())
    engine = simulated(scene, beta)
    for name, near in (("ttft_ms", 0.03), ("itl_ms", 0.02), ("e2e_ms", 0.02)):
        one, other = np.mean(getattr(ours, name)), np.mean(getattr(engine, name))
        assert one == pytest.approx(other, rel=near)
