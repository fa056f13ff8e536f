"""Settings of flow control: what is allowed, and what the engine is given."""

import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.commands.run.flags import make_parser
from blis_jax.core.types import EngineShape
from blis_jax.engine import mechanism
from blis_jax.engine.cluster_params import NO_TARGET
from blis_jax.errors import ConfigError
from blis_jax.tables.gateways import BeforePools, QueueParams, TenantBudgets
from tests.support.scenes import first_state_of


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"saturation_detector": "load"}, "saturation_detector 'load' is not known; use never or"),
        ({"dispatch_order": "lifo"}, "dispatch_order 'lifo' is not known"),
        ({"max_concurrency": 0}, "max_concurrency must be above 0, got 0"),
        ({"usage_limit_threshold": 0.0}, "usage_limit_threshold must be above 0 and at most 1"),
        ({"request_ttl": -1}, "request_ttl must be at least 0"),
        ({"slo_targets": "urgent=1"}, "'urgent' is no SLO class"),
        ({"slo_targets": "critical=0"}, "'critical=0' must be CLASS=N with whole µs above 0"),
        ({"tenant_budgets": "a=0.1"}, "'a=0.1' must be TENANT=SHARE"),
        ({"tenant_budgets": "0=1.5"}, "'0=1.5' must be TENANT=SHARE"),
        ({"slo_targets": "critical"}, "'critical' must be CLASS=N"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(settings, words):
    with pytest.raises(ConfigError, match=words):
        ClusterConfig(**settings)


def test_options_have_the_names_of_blis():
    line = ["--profile", "blis-2026-08", "--model", "meta-llama/llama-3.1-8b-instruct"]
    line += ["--flow-control", "--slo-targets", "critical=9,batch=4"]
    line += ["--fairness-policy", "round-robin", "--request-ttl", "7", "--queue-shedding"]
    config = cluster_config(make_parser().given([*line, "--dispatch-tick-interval", "0"]))
    queue = mechanism.params(config).cluster[QueueParams]
    assert (
        mechanism.mechanism(config).has_queue and not mechanism.mechanism(config).evicts_in_flight
    )
    assert queue.target_us.tolist() == [NO_TARGET, 9, NO_TARGET, NO_TARGET, 4, NO_TARGET]
    assert queue.round_robin and queue.sheds and not queue.by_deadline
    assert (queue.ttl_us, queue.tick_us) == (7, 1000)


def test_classes_have_the_priorities_of_the_bundle():
    config = ClusterConfig(
        revision=AUGUST,
        flow_control=True,
        policy_numbers={"priority.sheddable": 10, "priority.critical": -5},
    )
    queue = mechanism.params(config).cluster[QueueParams]
    assert queue.priority.tolist() == [3, -5, 3, 10, -1, -3]
    ours = mechanism.params(ClusterConfig(flow_control=True, priority_policy="slo-class"))
    assert ours.cluster[QueueParams].priority.tolist() == [3, 4, 3, -2, -1, -3]
    assert ours.cluster[QueueParams].priority.dtype == np.int32


def test_in_august_the_queue_takes_the_place_of_admission():
    given = {"flow_control": True, "admission_policy": "reject-all"}
    plain = mechanism.mechanism(ClusterConfig(flow_control=True))
    august = mechanism.mechanism(ClusterConfig(revision=AUGUST, **given))
    assert august.admission == plain.admission
    assert mechanism.mechanism(ClusterConfig(**given)).admission != plain.admission


def test_without_the_queue_nothing_of_it_is_handed_on():
    config = ClusterConfig(saturation_detector="concurrency", request_ttl=5)
    assert QueueParams not in mechanism.params(config).cluster
    assert mechanism.mechanism(config) == mechanism.mechanism(ClusterConfig())


def test_only_where_kv_is_reserved_the_queue_remembers_its_ticks():
    """Pools of August go with the queue and with budgets; other mechanisms have the tables that they had."""
    pools = {"num_instances": 2, "prefill_instances": 1, "decode_instances": 1}
    august = ClusterConfig(
        revision=AUGUST, flow_control=True, tenant_budgets="0=0.1", pd_decider="always", **pools
    )
    made = mechanism.mechanism(august)
    assert made.has_queue and made.reserves_decode and made.has_budgets
    others = [
        ClusterConfig(revision=AUGUST, flow_control=True),
        ClusterConfig(flow_control=True, hand_over_policy="pools"),
    ]
    shape = EngineShape(1, 1, 4, 1, 1, clock="int64")
    states = [first_state_of(config, shape) for config in (august, *others)]
    assert [BeforePools in state for state in states] == [True, False, False]


def test_budgets_are_shares_of_all_batches():
    config = ClusterConfig(num_instances=2, max_num_running_reqs=64, tenant_budgets="0=0.02, 2=0.5")
    limit = mechanism.params(config).cluster[TenantBudgets].limit
    assert limit[:4].tolist() == [0.02 * 128, np.inf, 64.0, np.inf]
    assert mechanism.mechanism(config).has_budgets
    assert TenantBudgets not in mechanism.params(ClusterConfig()).cluster


VLLM = {"corrected": True}


@pytest.mark.parametrize(
    ("settings", "most"),
    [
        ({"max_num_scheduled_tokens": 128}, 256),  # BLIS takes it
        ({"max_num_scheduled_tokens": 128, "max_num_running_reqs": 200}, 200),
        ({**VLLM, "max_num_scheduled_tokens": 128}, 128),
        ({**VLLM, "max_num_scheduled_tokens": 512}, 256),
        ({**VLLM, "instances": [{"max_num_scheduled_tokens": 40}]}, 256),
    ],
)
def test_the_most_requests_follow_the_budget_where_they_are_not_given(settings, most):
    assert ClusterConfig(**settings).max_num_running_reqs == most


@pytest.mark.parametrize(
    "settings",
    [
        {"max_num_scheduled_tokens": 128, "max_num_running_reqs": 129},
        {"max_num_batched_tokens": 128, "max_num_seqs": 129},
        {"max_num_running_reqs": 4000},
        {"instances": [{"max_num_running_reqs": 4000}]},
    ],
)
def test_a_budget_below_the_most_requests_is_refused_where_vllm_refuses_it(settings):
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens \d+ is below max_num_seqs \d+"):
        ClusterConfig(**settings, **VLLM)


def test_a_budget_that_comes_later_lowers_the_most_requests():
    server = ClusterConfig(**VLLM, max_num_running_reqs=256)
    assert server.replace(max_num_scheduled_tokens=64).max_num_running_reqs == 64
    assert server.replace(max_num_scheduled_tokens=512).max_num_running_reqs == 256
    of_blis = ClusterConfig(max_num_running_reqs=256, max_num_scheduled_tokens=64)
    assert of_blis.replace(corrected=True).max_num_running_reqs == 64
    with pytest.raises(ConfigError, match="is below max_num_seqs 128"):
        server.replace(max_num_scheduled_tokens=64, max_num_running_reqs=128)
