"""Names of metrics on pages, in tables and on the terminal come from one table."""

from __future__ import annotations

import pytest

import blis_jax.metrics.further  # noqa: F401  (registers the metrics of searches)
from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.metrics.metric import METRICS
from blis_jax.reports import answers, words
from blis_jax.reports.words import cluster_line
from sweeps.strategies.arms import arm_of, list_names


@pytest.mark.parametrize("metric", [name for name, one in METRICS.items() if one.title])
def test_a_metric_has_one_title(metric: str):
    title = METRICS[metric].title
    assert title is not None and words.table_title(metric) == title
    assert words.metric_name(metric) == title.split(",")[0]
    if metric not in answers.IN_PERCENT:
        assert answers.metric_title(metric) == title


def test_decode_tokens_are_not_called_output_tokens():
    assert words.table_title("tokens_per_sec") == "decode tokens/s"
    assert words.metric_words("tokens_per_sec") == "decode tokens per second"


def test_a_verdict_is_about_what_so_few_runs_can_tell() -> None:
    both = ["e2e_mean_ms", "ttft_p99_ms", "pooled_ttft_p99_ms"]
    assert words.headline_metric(both, 20, 30, 0.05) == "pooled_ttft_p99_ms"
    assert words.headline_metric(both, 14, 30, 0.05) == "ttft_p99_ms"  # 15 take it
    assert words.headline_metric(both, 14, 6, 0.05) == "pooled_ttft_p99_ms"
    assert words.headline_metric(["pooled_ttft_p99_ms"], 2, 30, 0.05) == "pooled_ttft_p99_ms"
    assert words.headline_metric(["e2e_mean_ms"], 2, 30, 0.05) == "e2e_mean_ms"


def test_what_goodput_counts_is_said_where_something_counts_by_it() -> None:
    targets = {"critical": {"ttft_ms": 100.0}, "standard": {"ttft_ms": 250.0, "e2e_ms": 900.0}}
    assert words.limits_lines(["ttft_p99_ms", "requests_per_s[critical]"], targets) == ()
    for name in ("goodput_rps", "attainment[critical]", "class_fairness"):
        (line,) = words.limits_lines(["ttft_p99_ms", name], targets)
        assert "critical TTFT ≤ 100 ms, standard TTFT ≤ 250 ms and E2E ≤ 900 ms" in line


FIT = {"alpha_coeffs": (0.0, 0.0, 0.0), "beta_coeffs": (1e4, 1.0, 1.0)}
PLAIN = ClusterConfig(model="m", hardware="L4", tp=1, num_instances=2, corrected=True, **FIT)
SAID = (
    "m; 2 instances × 1 L4 = 2 GPUs; budget 2,048 tokens, 256 requests; chunks by budget; router round-robin; "
    "without BLIS's defects."
)


def test_one_arm() -> None:
    assert cluster_line({"a": PLAIN}) == cluster_line({"a": PLAIN, "b": PLAIN}) == SAID


def test_arms_that_differ_are_named() -> None:
    told = cluster_line({"a": PLAIN, "b": PLAIN.replace(enable_prefix_caching=False)})
    assert told.splitlines()[1:] == ["a: prefix caching on.", "b: prefix caching off."]
    assert told.splitlines()[0] == f"{SAID[:-1]}; by arm: prefix caching."


def test_pools_are_told_once() -> None:
    pools = PLAIN.replace(
        instances=(InstanceGroup(1, role="prefill"), InstanceGroup(2, role="decode"))
    )
    told = cluster_line({"a": pools.replace(hand_over_policy="pools"), "b": PLAIN})
    assert told.splitlines()[1:] == [
        "a: 1 prefill instance × 1 L4 + 2 decode instances × 1 L4 = 3 GPUs; router round-robin, hand-over pools.",
        "b: 2 instances × 1 L4 = 2 GPUs; router round-robin.",
    ]


@pytest.mark.parametrize(
    ("changes", "before", "after"),
    [
        ({"num_instances": 1, "tp": 4}, "2 instances × 1 L4 = 2", "1 instance × 4 L4 = 4"),
        ({"long_prefill_token_threshold": 256}, "chunks by budget", "chunks of 256"),
        ({"slo_prefill": True}, "by budget", "by class"),
        ({"enable_prefix_caching": False}, "defects.", "defects.\nPrefix caching off."),
        ({"kv_cpu_blocks": 3000}, "defects.", "defects.\nCPU tier of 3,000 KV blocks."),
        ({"corrected": False}, "without BLIS's defects", "as BLIS of February 2026, defects included"),
        (
            {"routing_policy": "weighted", "routing_scorers": "queue-depth:2,load-balance:1"},
            "round-robin", "weighted by queue-depth 2 + load-balance 1",
        ),
        (
            {"hand_over_policy": "pools", "instances": [{"role": "prefill"}, {"count": 2, "role": "decode"}]},
            "2 instances × 1 L4 = 2 GPUs", "1 prefill × 1 L4 + 2 decode × 1 L4 = 3 GPUs",
        ),
    ],
)  # fmt: skip
def test_each_setting_is_told(changes: dict[str, object], before: str, after: str) -> None:
    told = cluster_line({"a": PLAIN.replace(**changes)})
    assert told.replace(", hand-over pools", "") == SAID.replace(before, after)


def test_roofline_has_no_cost_between_gpus() -> None:
    words = "exchange data in no time, so tp looks better than it is"
    of_tp = {
        tp: ClusterConfig(model="qwen/qwen3-14b", latency_model="roofline", tp=tp, corrected=True)
        for tp in (1, 2)
    }
    assert words not in cluster_line({"one": of_tp[1]})
    assert words in cluster_line({"two": of_tp[2]})
    told = cluster_line({"one": of_tp[1], "two": of_tp[2]})
    assert words in told.splitlines()[2] and words not in told.splitlines()[1]
    assert words not in cluster_line({"two": PLAIN.replace(tp=2)})


def test_arms_that_differ() -> None:
    other = PLAIN.replace(max_num_scheduled_tokens=512, kv_cpu_blocks=9)
    told = cluster_line({"a": PLAIN, "b": other, "c": PLAIN})
    assert told.splitlines()[1:] == [
        "a: budget 2,048 tokens, 256 requests; no CPU tier.",
        "b: budget 512 tokens, 256 requests; CPU tier of 9 KV blocks.",
        "c: budget 2,048 tokens, 256 requests; no CPU tier.",
    ]
    many = {
        name: PLAIN.replace(max_num_scheduled_tokens=size)
        for name, size in zip("abcde", range(300, 305), strict=True)
    }
    assert cluster_line(many).endswith("; by arm: budget.")


def test_settings_without_words_are_told_where_arms_differ_in_few() -> None:
    old = PLAIN.replace(load_refresh_interval=1_000_000, in_flight_counts=False)
    told = cluster_line({"fresh": PLAIN, "old": old}).splitlines()
    assert told[0] == f"{SAID[:-1]}; by arm: settings."
    assert told[1:] == [
        "fresh: the defaults.",
        "old: load_refresh_interval=1000000; in_flight_counts=False.",
    ]
    pairs = [
        PLAIN.replace(routing_policy="power-of-two", policy_numbers={"routing.candidates": many})
        for many in (2, 3)
    ]
    told = cluster_line(dict(zip("ab", pairs, strict=True))).splitlines()
    assert [line.rpartition("=")[0] for line in told[1:]] == [
        "a: routing.candidates",
        "b: routing.candidates",
    ]
    more = {"admission_latency": 1, "routing_latency": 2, "kv_transfer_bandwidth": 3.0}
    more |= {"network_delay": 4, "cache_signal_delay": 5}
    many = old.replace(**more)
    assert cluster_line({"fresh": PLAIN, "many": many}).splitlines() == [
        f"{SAID[:-1]}; by arm: {2 + len(more)} settings."
    ]


@pytest.mark.parametrize("name", list_names())
def test_the_line_is_short_for_every_strategy(name: str) -> None:
    assert len(cluster_line({name: arm_of(name).config}).splitlines()[0]) <= words.LONGEST


def test_what_the_command_varies() -> None:
    told = cluster_line(
        {"a": PLAIN}, ("num_instances", "max_num_scheduled_tokens", "routing_scorers")
    )
    assert told == (
        "m; instances × 1 L4, their number varied; budget varied; chunks by budget; router varied; "
        "without BLIS's defects."
    )
