"""What is asked for, and the clusters that may answer it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError
from sweeps.capacity.layouts import families
from sweeps.capacity.targets import ServiceTarget, read_service_targets

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
    ("text", "says"),
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
def test_bad_targets_are_refused(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=r"^--targets: ") as refused:
        read_service_targets([text], CLASSES)
    assert says in str(refused.value)


def test_an_arms_own_instances_are_only_counted() -> None:
    config = ClusterConfig(scheduler="sjf", tp=1)
    (alone,) = families((), None, None, {}, False, config)
    layout = alone.of(5)
    assert (layout.num_instances, layout.num_gpus, layout.cost_per_hour) == (5, 5, 5.0)
    assert layout.configured(config, False) == config.replace(num_instances=5)


@pytest.mark.parametrize("is_split", [False, True])
def test_an_arms_own_instances_have_the_gpus_of_its_parallelism(is_split: bool) -> None:
    """Tensor parallelism, and of models with experts data parallelism, too."""
    physics = {"latency_model": "trained-physics", "hardware": "H100"}
    dense = ClusterConfig(model="meta-llama/llama-3.1-70b-instruct", tp=8, **physics)
    experts: Any = SimpleNamespace(tp=4, dp=2)
    for config, each in ((ClusterConfig(), 2), (dense, 8), (experts, 8)):
        for family in families((), None, None, {}, is_split, config):
            assert family.of(3).num_gpus == family.of(3).cost_per_hour == 3 * each


def test_gpus_bring_their_coefficients_blocks_and_price() -> None:
    found = families(
        ("H100", "A100-80"), MODEL, 2, {"H100": 3.0, "A100-80": 1.5}, False, ClusterConfig()
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


@pytest.mark.parametrize("size", range(2, 10))
def test_both_pools_have_an_instance(size: int) -> None:
    for family in families((), None, None, {}, True, ClusterConfig())[1:]:
        prefill, decode = family.of(size).parts
        assert prefill.role == "prefill" and decode.role == "decode"
        assert prefill.count >= 1 and decode.count >= 1 and prefill.count + decode.count == size
        config = family.of(size).configured(ClusterConfig(), True)
        assert config.corrected and config.hand_over_policy == "pools"
        assert [group.role for group in config.instances] == ["prefill", "decode"]


@pytest.mark.parametrize(
    ("gpus", "model", "prices", "says"),
    [
        (("H100",), None, {}, "needs --model"),
        (("H100", "T4"), MODEL, {}, "--gpus T4: "),
        (("H100",), MODEL, {"A100-80": 1.0}, "--prices: 'A100-80' is not among --gpus"),
    ],
)
def test_clusters_that_cannot_be_are_refused(
    gpus: tuple[str, ...], model: str | None, prices: dict[str, float], says: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        families(gpus, model, None, prices, False, ClusterConfig())
    assert says in str(refused.value)
