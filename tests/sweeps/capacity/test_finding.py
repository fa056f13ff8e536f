"""What is asked for, and the clusters that may answer it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import lookup
from blis_jax.reports.render import text
from blis_jax.statistics.intervals import Estimate
from sweeps.capacity.deciding import Decision, ServiceTarget, read_service_targets
from sweeps.capacity.document import findings_of
from sweeps.capacity.finding import Smallest, families
from sweeps.claims.words import FAILS, MEETS, OPEN
from sweeps.strategies.arms import Arm, arm_of
from tests.support.findings_forms import assert_all_forms_agree

CLASSES = ("critical", "standard")
MODEL = "meta-llama/llama-3.1-8b-instruct"


def test_targets_are_read() -> None:
    given = ["critical.ttft_ms=200@99.5, all.e2e_ms=5e3", "standard.tpot_ms=30@90"]
    assert read_service_targets(given, CLASSES) == (
        ServiceTarget("critical", "ttft_ms", 200.0, 0.995),
        ServiceTarget("all", "e2e_ms", 5000.0, 0.99),
        ServiceTarget("standard", "tpot_ms", 30.0, 0.9),
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("", "none is given"),
        ("critical.ttft=200", "did you mean 'ttft_ms'"),
        ("critcal.ttft_ms=200", "did you mean 'critical'"),
        ("batch.ttft_ms=200", "no request is of class 'batch'"),
        ("critical.ttft_ms=fast", "'fast'"),
        ("critical.ttft_ms=0", "above 0"),
        ("critical.ttft_ms=200@100", "below 100 %"),
        ("critical.ttft_ms=200,critical.ttft_ms=300", "given twice"),
    ],
)
def test_bad_targets_are_refused(words: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^--targets: ") as refused:
        read_service_targets([words], CLASSES)
    assert says in str(refused.value)


def test_an_arms_own_instances_are_only_counted() -> None:
    config = ClusterConfig(scheduler="sjf", tp=1)
    (alone,) = families((), None, None, {}, False, Arm("mine", config))
    layout = alone.of(5)
    assert (layout.num_instances, layout.num_gpus, layout.cost_per_hour) == (5, 5, 5.0)
    assert layout.configured(config, False) == config.replace(num_instances=5)


@pytest.mark.parametrize(("mode", "blocks"), [("restart", 132_139), ("recompute", 66_069)])
def test_gpus_of_a_server_as_vllm_have_the_blocks_that_fit(mode: str, blocks: int) -> None:
    config = ClusterConfig(corrected=True, preemption_mode=mode)
    (h100,) = families(("H100",), None, None, {}, False, Arm("mine", config))
    (group,) = h100.of(2).configured(config, False).instances
    assert (group.count, group.total_kv_blocks) == (2, blocks)


def test_the_answer_has_the_same_numbers_in_all_forms() -> None:
    config = ClusterConfig()
    (alone,) = families((), None, None, {}, False, Arm("mine", config))
    tried = {
        1: Decision(FAILS, 64, (Estimate(0.5, 0.4, 0.6, 64),)),
        2: Decision(OPEN, 1024, (Estimate(0.99, 0.985, 0.995, 64),)),
        3: Decision(MEETS, 512, (Estimate(0.9991, 0.995, 1.0, 64),)),
    }
    found = [Smallest(Arm("mine", config), alone, tried)]
    target = ServiceTarget("critical", "ttft_ms", 200.0, 0.99)
    findings = findings_of(found, [target], {"workload": "mixed", "confidence": 0.95})
    assert_all_forms_agree(findings)
    lines = dict(findings.answer.lines())
    assert lines["Verdict"] == (
        "mine does with 3 instances × 2 H100 = 6 GPUs; 1 is too few, 2 open."
    )
    assert (
        "with 3 instances 99.91 % [99.50, 100.00] of critical requests keep their TTFT."
        in lines["Sure"]
    )
    assert lines["Price"] == "1600 runs."
    assert "more --seeds" in lines["Next"] and "do not tell whether 2 instances" in text(findings)
    recorded = {"workload": "t.csv", "confidence": 0.95, "stream": "recorded"}
    assert (
        findings_of(found, [target], recorded).answer.next
        == "more --trace-windows close what is open."
    )
    fails = [Smallest(Arm("mine", config), alone, {1: tried[1]})]
    none = findings_of(fails, [target], {"workload": "mixed", "confidence": 0.95})
    assert str(none.answer.verdict[0]).startswith(
        "no cluster of at most 1 instance does; mine with 1 instance × 2 H100 = 2 GPUs has 50.0"
    )
    assert none.answer.next.startswith("allow more --max-instances") and "> 1" in text(none)
    none_in_time = {1: Decision(FAILS, 64, (Estimate(0.0, 0.0, 0.01, 64),))}
    too_short = findings_of(
        [Smallest(Arm("mine", config), alone, none_in_time)],
        [target],
        {"workload": "mixed", "confidence": 0.95},
    )
    assert too_short.answer.next.startswith("not one request is in time, so more instances")
    piled = [Smallest(Arm("mine", config), alone, {2: tried[1], 4: tried[1]})]
    limit = findings_of(piled, [target], {"workload": "mixed", "confidence": 0.95})
    assert str(limit.answer.verdict[1]).startswith("more instances do not help: 2 have 50.0")
    assert "another router" in limit.answer.next
    unsure = [Smallest(Arm("mine", config), alone, {1: tried[1], 2: tried[2]})]
    unknown = findings_of(unsure, [target], {"workload": "mixed", "confidence": 0.95})
    assert str(unknown.answer.verdict[0]).startswith(
        "open: mine with 2 instances × 2 H100 = 4 GPUs had "
    )
    assert unknown.answer.next.startswith("more --seeds tell") and "> 2" not in text(unknown)
    likely = replace(tried[2], reaches=True)
    dear = Smallest(Arm("dear", config), alone, {1: tried[1], 4: likely})
    rather = findings_of(
        [dear, Smallest(Arm("mine", config), alone, {2: likely, 3: likely})],
        [target],
        {"workload": "mixed", "confidence": 0.95},
    )
    assert [str(each).partition(" had ")[0] for each in rather.answer.verdict] == [
        "likely: mine with 2 instances × 2 H100 = 4 GPUs",
        "likely: dear with 4 instances × 2 H100 = 8 GPUs",
    ]
    assert "likely 8" in text(rather)


def test_the_verdict_names_a_policy_that_may_cost_no_more() -> None:
    config = ClusterConfig()
    (alone,) = families((), None, None, {}, False, Arm("mine", config))
    meets = Decision(MEETS, 512, (Estimate(0.9991, 0.995, 1.0, 64),))
    unsure = Decision(OPEN, 1024, (Estimate(0.99, 0.985, 0.995, 64),))
    target = ServiceTarget("critical", "ttft_ms", 200.0, 0.99)
    setting = {"workload": "mixed", "confidence": 0.95}
    first = Smallest(Arm("mine", config), alone, {3: meets})
    for tried, said in (
        ({2: unsure, 4: meets}, "open, and no dearer: yours with 2 instances."),
        ({3: unsure}, "open, and no dearer: yours with 3 instances."),
        ({4: unsure, 5: meets}, None),
    ):
        other = Smallest(Arm("yours", config), alone, tried)
        findings = findings_of([first, other], [target], setting)
        assert_all_forms_agree(findings)
        others = [str(sentence) for sentence in findings.answer.verdict[1:]]
        needs = [each for each in others if each.startswith(("yours does with", "yours needs"))]
        assert len(needs) == list(tried.values()).count(meets)
        assert [each for each in others if each not in needs] == ([said] if said else [])


@pytest.mark.parametrize("is_split", [False, True])
def test_an_arms_own_instances_have_the_gpus_of_its_parallelism(is_split: bool) -> None:
    """Tensor parallelism, and of models with experts data parallelism, too."""
    physics = {"latency_model": "trained-physics", "hardware": "H100"}
    dense = ClusterConfig(model="meta-llama/llama-3.1-70b-instruct", tp=8, **physics)
    experts: Any = SimpleNamespace(tp=4, dp=2)
    for config, each in ((ClusterConfig(), 2), (dense, 8), (experts, 8)):
        for family in families((), None, None, {}, is_split, Arm("mine", config)):
            assert family.of(3).num_gpus == family.of(3).cost_per_hour == 3 * each


def test_gpus_bring_their_coefficients_blocks_and_price() -> None:
    found = families(
        ("H100", "A100-80"),
        MODEL,
        2,
        {"H100": 3.0, "A100-80": 1.5},
        False,
        Arm("mine", ClusterConfig()),
    )
    names = [one.name for one in found]
    assert names[:2] == ["H100", "A100-80"] and names[3] == "50 % H100, 50 % A100-80"
    mixed = found[3].of(5)
    assert str(mixed) == "3 × H100 + 2 × A100-80"
    assert (mixed.num_gpus, mixed.cost_per_hour) == (10, 2 * (3 * 3.0 + 2 * 1.5))
    groups = mixed.configured(ClusterConfig(), False).instances
    fits = [part.hardware.coefficients for part in mixed.parts]
    for group, fit in zip(groups, fits, strict=True):
        assert fit is not None
        assert (group.alpha_coeffs, group.beta_coeffs) == (fit.alpha, fit.beta)
        assert group.total_kv_blocks == fit.total_kv_blocks
    assert fits[0] != fits[1]


def test_without_a_model_the_gpus_serve_the_arms_and_its_file_knows_them() -> None:
    """vLLM's defaults on an A100 are others than on an H100; what the arm's text says stays."""
    for words, of_a100 in (
        ("vllm", {"max_num_running_reqs": 256, "max_num_scheduled_tokens": 2048}),
        ("vllm:max_num_scheduled_tokens=4096", {"max_num_running_reqs": 256}),
    ):
        arm = arm_of(words)
        h100, a100, *_ = families(("H100", "A100-80"), None, None, {}, False, arm)
        assert h100.first.settings == {} and a100.first.settings == of_a100
        assert (a100.of(3).num_gpus, a100.first.coefficients) == (3, lookup(MODEL, "A100-80", 1))
        (group,) = a100.of(3).configured(arm.config, False).instances
        assert group.numbers().items() >= of_a100.items()


@pytest.mark.parametrize("size", range(2, 10))
def test_both_pools_have_an_instance(size: int) -> None:
    for family in families((), None, None, {}, True, Arm("mine", ClusterConfig()))[1:]:
        prefill, decode = family.of(size).parts
        assert prefill.role == "prefill" and decode.role == "decode"
        assert prefill.count >= 1 and decode.count >= 1 and prefill.count + decode.count == size
        config = family.of(size).configured(ClusterConfig(), True)
        assert config.corrected and config.hand_over_policy == "pools"
        assert [group.role for group in config.instances] == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("gpus", "model", "prices", "says"),
    [
        (("H100", "T4"), MODEL, {}, "--gpus T4: "),
        (("H100",), MODEL, {"A100-80": 1.0}, "--prices: 'A100-80' is not among --gpus"),
        (
            ("H100",),
            "meta-llama/llama-3.1-70b-instruct",
            {},
            "leave --gpus out and name the GPU in the policy, whose GPUs are counted as well: --policy "
            "'vllm:latency_model=trained-physics;model=meta-llama/llama-3.1-70b-instruct;hardware=H100;",
        ),
    ],
)
def test_clusters_that_cannot_be_are_refused(
    gpus: tuple[str, ...], model: str | None, prices: dict[str, float], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        families(gpus, model, None, prices, False, Arm("mine", ClusterConfig()))
    assert says in str(refused.value)


def test_a_law_without_fits_is_told_how_its_gpus_are_counted() -> None:
    arm = Arm("mine", ClusterConfig(latency_model="trained-physics", model=MODEL))
    with pytest.raises(ConfigError, match="latency model trained-physics has none; leave --gpus"):
        families(("H100",), None, None, {}, False, arm)
