"""Pools of `blis-2026-08`: which instance is in which, what each has of its own, and what is refused."""

import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.cluster.disaggregation import cuts_answers, numbers
from blis_jax.cluster.instance_groups import per_instance, roles
from blis_jax.cluster.step_times import alphas, times_after_decode, vectors
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.run.flags import make_parser
from blis_jax.core.types import ENCODE, IDLE
from blis_jax.core.views import AnswerCuts, ContextLimits
from blis_jax.engine.mechanism import mechanism, params
from blis_jax.errors import ConfigError

POOLS = {"num_instances": 2, "prefill_instances": 1, "decode_instances": 1}


def test_instances_follow_each_other_by_pool():
    sizes = {"prefill_instances": 2, "decode_instances": 1, "prefill_decode_instances": 1}
    config = ClusterConfig(revision=AUGUST, num_instances=6, encode_instances=1, **sizes)
    assert roles(config) == [1, 1, 2, 0, ENCODE, IDLE]


def test_a_pool_on_other_gpus_has_other_blocks_and_nothing_else():
    """The blocks are those that the recorded run `pd_tp_hetero_s42` names."""
    own = {"decode_tp": 2, "decode_hardware": "A100-80"}
    config = ClusterConfig(revision=AUGUST, tp=1, hardware="H100", **POOLS, **own)
    assert per_instance(config, "total_kv_blocks") == [26312, 125278]
    assert per_instance(config, "tp") == [1, 2]
    assert per_instance(config, "hardware") == ["H100", "H100"]
    assert per_instance(config, "max_model_len") == [131_072, 131_072]
    assert params(config).cluster[ContextLimits].most.ndim == 0
    longer = config.replace(decode_tp=1, decode_hardware="L40S", max_model_len=400_000)
    blocks = per_instance(longer, "total_kv_blocks")
    assert blocks[1] < blocks[0]
    assert per_instance(longer, "max_model_len") == [400_000, 16 * blocks[1]]


def test_an_instance_that_does_both_has_what_the_decode_pool_has():
    """As in BLIS, which gives it the decode pool's settings."""
    own = {"prefill_decode_instances": 1, "decode_tp": 2, "decode_max_model_len": 90_000}
    config = ClusterConfig(revision=AUGUST, tp=1, **(POOLS | {"num_instances": 4}), **own)
    assert per_instance(config, "tp") == [1, 2, 2, 1]
    assert per_instance(config, "max_model_len") == [131_072, 90_000, 90_000, 131_072]


@pytest.mark.parametrize(
    ("settings", "cuts"),
    [
        ({"decode_max_model_len": 900}, True),
        ({"decode_max_model_len": 900, "prefill_max_model_len": 900}, False),
        ({"decode_max_model_len": 900, "pd_decider": "never"}, False),
        ({"prefill_max_model_len": 900}, False),
        ({}, False),
    ],
)
def test_a_decode_pool_for_shorter_requests_cuts_their_answers(settings, cuts):
    """BLIS ends one at 899 tokens in all: `sim/simulator.go`, behind the end of a step."""
    config = ClusterConfig(**({"revision": AUGUST, "pd_decider": "always"} | POOLS | settings))
    assert cuts_answers(config) is cuts
    numbers_of = params(config).cluster
    assert (AnswerCuts in numbers_of) is cuts
    assert not cuts or numbers_of[AnswerCuts].at.tolist() == [131_071, 899]


def test_a_pool_has_a_latency_model_of_its_own():
    """Roofline takes the second α for each prompt token, trained-physics once after decode."""
    config = ClusterConfig(revision=AUGUST, tp=1, **POOLS, decode_latency_model="roofline")
    (first, *physics), (second, *roofline) = vectors(config)
    assert (first, second) == (1.0, 0.0) and len(physics) == len(roofline)
    whole = vectors(config.replace(decode_latency_model=""))[0]
    assert tuple(physics[: len(whole)]) == whole and not any(physics[len(whole) :])
    assert [alpha[1] for alpha in alphas(config)] == [0.0, config.alpha_coeffs[1]]
    assert times_after_decode(config) == [777, 0]
    alike = config.replace(prefill_latency_model="roofline")
    assert (
        mechanism(alike).latency
        is mechanism(ClusterConfig(revision=AUGUST, latency_model="roofline")).latency
    )


def test_a_transfer_has_the_prefill_pools_bytes():
    config = ClusterConfig(revision=AUGUST, **POOLS, pd_decider="always")
    found = numbers(config)
    assert found["block_bytes"] == 16 * 32 * 2 * 128 * 8 * 2
    assert (found["base_latency_us"], found["bytes_per_us"]) == (50.0, 25_000.0)
    assert numbers(config.replace(prefill_tp=2))["block_bytes"] == found["block_bytes"] / 2
    assert numbers(config.replace(decode_tp=2))["block_bytes"] == found["block_bytes"]


def test_pools_with_scorers_have_routers_and_streams_of_their_own():
    settings = {"prefill_routing_scorers": "queue-depth:1", "routing_policy": "least-loaded"}
    config = ClusterConfig(revision=AUGUST, **POOLS, **settings)
    functions = mechanism(config)
    assert [router.pool for router in functions.pool_routers] == ["prefill"]
    drawn = params(config, num_requests=4).policy
    (prefill,) = drawn.pool_routers
    assert prefill.draws.tolist()[:4] != drawn.draws.tolist()[:4]
    assert mechanism(config.replace(prefill_routing_scorers="")).pool_routers == ()


def test_options_are_those_of_blis():
    line = ["--profile", "blis-2026-08", "--model", "meta-llama/llama-3.1-8b-instruct"]
    line += ["--num-instances", "2", "--prefill-instances", "1"]
    line += ["--decode-instances", "1", "--pd-decider", "prefix-threshold"]
    line += ["--pd-prefix-threshold", "300", "--pd-transfer-contention"]
    config = cluster_config(make_parser().given(line))
    given = {"pd_decider": "prefix-threshold", "pd_prefix_threshold": 300}
    assert config == ClusterConfig(revision=AUGUST, **POOLS, **given, pd_transfer_contention=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"revision": "blis-2026-02"} | POOLS,
            "prefill_instances exists only in the revision blis-2026-08",
        ),
        ({"pd_decider": "always"}, "give prefill_instances and decode_instances too"),
        (POOLS | {"decode_instances": 2}, "the pools add up to 3"),
        ({"prefill_instances": 1, "num_instances": 2}, "decode_instances is 0"),
        (
            POOLS | {"pd_decider": "sometimes"},
            "pd_decider .sometimes. is not known; use never or always",
        ),
        (POOLS | {"encode_decider": "always"}, "needs an encode pool"),
        (POOLS | {"pd_transfer_bandwidth": 0.0}, "pd_transfer_bandwidth must be above 0"),
        (POOLS | {"decode_latency_model": "blackbox"}, "must be one of trained-physics, roofline"),
        (
            POOLS | {"latency_model": "roofline", "prefill_latency_model": "trained-physics"},
            "prefill_latency_model is trained-physics, but",
        ),
        (POOLS | {"decode_routing_policy": "weighted"}, "leave it at same"),
        (POOLS | {"prefill_routing_scorers": "nobody:1"}, "nobody"),
    ],
)
def test_what_does_not_go_together_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ClusterConfig(**({"revision": AUGUST} | settings))
