"""What the profile `blis-2026-08` takes for granted, calls otherwise, and refuses."""

import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.cluster.revisions import ROUTER_SIGNALS, registered, seen_as
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.core.revision_rules import AUGUST_RULES, FEBRUARY_RULES
from blis_jax.engine.mechanism import mechanism
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import lookup

MODEL = "meta-llama/llama-3.1-8b-instruct"


def test_defaults_are_those_of_the_revision():
    config = ClusterConfig(revision=AUGUST)
    assert config.profile == "blis-2026-08"
    assert (config.latency_model, config.tp) == ("trained-physics", 1)
    assert config.snapshot_refresh_interval == config.cache_signal_delay == 50_000
    assert config.total_kv_blocks * 16 > config.max_model_len == 131_072
    assert config.replace(revision="blis-2026-02") == ClusterConfig()
    assert config.replace(snapshot_refresh_interval=0).snapshot_refresh_interval == 0


def test_the_longest_request_fits_into_the_cache():
    config = ClusterConfig(revision=AUGUST, total_kv_blocks=400)
    assert config.max_model_len == 6400
    assert config.replace(max_model_len=1300).max_model_len == 1300
    assert config.replace(max_model_len=7000).max_model_len == 6400


def test_the_command_line_says_the_same():
    given = {"model": MODEL, "variant": AUGUST}
    assert cluster_config(given) == ClusterConfig(revision=AUGUST)
    given |= {"preemption_policy": "priority", "snapshot_refresh_interval": 0, "max_model_len": 900}
    expected = {"slo_preemption": True, "snapshot_refresh_interval": 0, "max_model_len": 900}
    assert cluster_config(given) == ClusterConfig(revision=AUGUST, **expected)


def test_names_of_the_revision():
    config = ClusterConfig(revision=AUGUST, routing_policy="weighted")
    assert registered(config, "scorer", "queue-depth") == "waiting-requests"
    assert registered(ClusterConfig(), "scorer", "queue-depth") == "queue-depth"
    names = [name for name, _ in config.scorers()]
    assert names == ["precise-prefix-cache", "queue-depth", "kv-utilization"]
    assert mechanism(config).rules == AUGUST_RULES
    assert mechanism(ClusterConfig()).rules == FEBRUARY_RULES


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"corrected": True}, "corrected True is not part of blis-2026-08; leave it at False"),
        ({"latency_model": "blackbox-context"}, "use trained-physics, roofline or blackbox"),
        ({"admission_policy": "slo-gated"}, "take the profile blis-2026-02"),
        ({"priority_policy": "slo-based"}, "leave it at constant"),
        ({"num_gateways": 2, "num_instances": 2}, "num_gateways 2 is not part of blis-2026-08"),
    ],
)
def test_what_the_revision_lacks_is_refused(settings, words):
    with pytest.raises(ConfigError, match=words):
        ClusterConfig(revision=AUGUST, **settings)


def test_a_limit_on_length_is_of_august_alone():
    with pytest.raises(ConfigError, match="leave it out, or take the profile blis-2026-08"):
        ClusterConfig(max_model_len=4096)


def test_the_linear_law_runs_under_augusts_rules():
    fit = lookup("qwen/qwen2.5-7b-instruct", "H100", 1, "vllm/vllm-openai:v0.11.0")
    config = ClusterConfig(
        revision=AUGUST, latency_model="blackbox", alpha_coeffs=fit.alpha, beta_coeffs=fit.beta,
        total_kv_blocks=fit.total_kv_blocks,
    )  # fmt: skip
    assert config.profile == "blis-2026-08/blackbox"
    assert config.beta_coeffs == (7051.796874715078, 19.538416565504026, 25.431830886933543)
    assert mechanism(config).rules == AUGUST_RULES
    assert lookup("qwen/qwen3-14b").total_kv_blocks == 17600


def test_a_router_sees_what_that_of_the_target_sees():
    """Scrapes, the count in flight, whole blocks of 64 tokens, the waiting requests alone, ties at random."""
    scorers = "prefix-affinity:3,queue-depth:2.5,kv-utilization:1"
    config = ClusterConfig(routing_policy="weighted", routing_scorers=scorers)
    seen = seen_as(config, ROUTER_SIGNALS[0])
    assert seen.load_refresh_interval == seen.snapshot_refresh_interval == 50_000
    assert (seen.snapshot_phases, seen.in_flight_counts) == ("drawn", True)
    assert seen.routing_picker == "random-best"
    assert seen.scorers() == [
        ("approx-prefix-cache", 3.0), ("waiting-requests", 2.5), ("kv-utilization", 1.0),
    ]  # fmt: skip
    assert seen_as(seen, ROUTER_SIGNALS[0]) == seen
    assert seen_as(config, None) is config
    drawn = seen_as(config.replace(routing_picker="weighted-random"), ROUTER_SIGNALS[0])
    assert drawn.routing_picker == "weighted-random"
    assert seen_as(ClusterConfig(), ROUTER_SIGNALS[0]).routing_policy == "round-robin"


def test_signals_that_nobody_knows_or_has_are_refused():
    with pytest.raises(ConfigError, match="signals 'llm-d' are unknown; use llm"):
        seen_as(ClusterConfig(), "llm-d")
    with pytest.raises(ConfigError, match="is not part of blis-2026-08"):
        seen_as(ClusterConfig(revision=AUGUST), ROUTER_SIGNALS[0])
