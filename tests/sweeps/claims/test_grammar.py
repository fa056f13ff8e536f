"""Claims from texts, and what is read of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from blis_jax.statistics.intervals import t_quantile
from sweeps.claims.grammar import (
    CHANGED,
    FALLS,
    FLAT,
    GAP,
    SHARE,
    Claim,
    bound,
    parse_claim,
    parse_constraint,
)
from sweeps.claims.judge import read


def figures(**metrics: list[float]) -> dict[str, np.ndarray]:
    return {
        name.replace("__", "[") + "]" * ("__" in name): np.array(v) for name, v in metrics.items()
    }


@pytest.mark.parametrize(
    ("text", "low", "high", "is_change"),
    [
        ("ttft_p99_ms[critical] <= -50%", -math.inf, -50, True),
        ("tokens_per_sec >= 5 %", 5, math.inf, True),
        ("tokens_per_sec in -5..5%", -5, 5, True),
        ("ttft_p99_ms[critical] <= 90.5", -math.inf, 90.5, False),
        ("slo_gap in 0.7..1.3", 0.7, 1.3, False),
        ("slo_gap = 8 +- 0.25", 7.75, 8.25, False),
        ("throughput_tps >= −5%", -5, math.inf, True),
    ],
)
def test_regions(text: str, low: float, high: float, is_change: bool) -> None:
    claim = parse_claim(text)
    assert (claim.low, claim.high, claim.is_change) == (low, high, is_change)


def test_published_figures_allow_half_a_unit_of_their_last_digit() -> None:
    claim = parse_claim("ttft_p99_ms[critical] = -66.5%")
    assert claim.holds(-66.45) and claim.holds(-66.55)
    assert not claim.holds(-66.44) and not claim.holds(-66.56)
    assert parse_claim("tokens_per_sec = 17198").holds(17198.4)


def test_shapes_along_a_setting() -> None:
    assert parse_claim("ttft_p99_ms falls").shape == FALLS
    flat = parse_claim("ttft_p99_ms[critical] flat within 5%")
    assert flat.shape == FLAT and (flat.low, flat.high) == (-5, 5) and not flat.is_effect


def test_names_are_the_registered_ones() -> None:
    assert parse_claim("throughput_tps >= 5%").metric == "tokens_per_sec"
    assert parse_claim(f"{GAP} >= 1.3").names == ("ttft_p99_ms[critical]", "ttft_p99_ms[sheddable]")
    assert parse_claim(f"{CHANGED} <= 0").names == ()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ttft_p99_ms", "does not have the form"),
        ("ttft_p98_ms <= 3", "is unknown"),
        ("ttft_p99_ms[vip] <= 3", "vip"),
        ("ttft_p99_ms in 5..-5%", "swap them"),
        ("slo_gap >= 30%", "leave the % out"),
        ("ttft_p99_ms < 3", "does not have the form"),
        ("ttft_p99_ms flat within 5", "does not have the form"),
    ],
)
def test_refusals(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_claim(text)


def test_a_change_is_paired_and_of_the_means() -> None:
    strategy, reference = figures(ttft_p99_ms=[50.0, 90.0]), figures(ttft_p99_ms=[100.0, 200.0])
    reading = read(parse_claim("ttft_p99_ms <= -50%"), strategy, reference)
    assert reading.per_seed == pytest.approx((-50.0, -55.0))
    assert reading.mean.mean == pytest.approx(100 * (140 / 300 - 1))
    assert reading.mean.low < reading.mean.mean < reading.mean.high


def test_a_value_has_the_interval_of_a_mean() -> None:
    values = [1.0, 2.0, 3.0]
    mean = read(parse_claim("ttft_p99_ms <= 2"), figures(ttft_p99_ms=values), {}).mean
    half = t_quantile(3) / math.sqrt(3)
    assert (mean.mean, mean.low, mean.high) == pytest.approx((2, 2 - half, 2 + half))


def test_the_gap_is_of_the_means() -> None:
    arm = figures(ttft_p99_ms__critical=[10.0, 30.0], ttft_p99_ms__sheddable=[40.0, 60.0])
    reading = read(parse_claim("slo_gap >= 1.3"), arm, {})
    assert reading.mean.mean == pytest.approx(2.5) and reading.per_seed == pytest.approx((4.0, 2.0))


def test_what_was_not_measured_is_nan() -> None:
    claim = parse_claim("ttft_p99_ms[critical] <= -5%")
    without = figures(ttft_p99_ms=[1.0])
    assert np.isnan(read(claim, without, without).per_seed).tolist() == [True]
    zero = figures(num_preemptions=[0.0, 0.0])
    change = read(parse_claim("num_preemptions <= -5%"), zero, zero)
    assert np.isnan(change.per_seed).all()


def test_effects_and_guards() -> None:
    assert parse_claim("ttft_p99_ms <= -5%").is_effect
    assert not parse_claim("ttft_p99_ms in -5..5%").is_effect
    assert not parse_claim("tokens_per_sec >= -5%").is_effect
    assert Claim("", "ttft_p99_ms", FALLS).is_effect


@pytest.mark.parametrize(
    "text",
    [
        "ttft_p99_ms[critical]<=-50%",
        "tokens_per_sec>=5",
        "tokens_per_sec in -5..5%",
        "slo_gap in 0.7..1.3",
        "ttft_p99_ms falls",
        "ttft_p99_ms flat within 5%",
    ],
)
def test_a_claim_is_written_as_it_is_read(text: str) -> None:
    claim = parse_claim(text)
    assert str(claim) == text and parse_claim(str(claim)) == claim


def test_percent_of_a_constraint_is_a_share_and_of_a_claim_a_change() -> None:
    share, change = parse_constraint("ttft_p99_ms<=200%"), parse_claim("ttft_p99_ms<=200%")
    assert (share.of, share.is_change, change.is_change) == (SHARE, False, True)
    means, first = np.array([100.0, 201.0]), np.array([100.0])
    assert share.limits(means, first).tolist() == [200.0]
    assert parse_constraint("ttft_p99_ms<=90").limits(means, first).tolist() == [90.0, 90.0]
    for text in ("slo_gap<=2", "ttft_p99_ms in 1..2", "ttft_p99_ms<=1e999"):
        with pytest.raises(ConfigError):
            parse_constraint(text)


def test_bounds_of_strategy_files() -> None:
    above, below = bound("throughput_tps", "max", 5.0), bound("ttft_p99_ms", "min", 5.0)
    assert str(above) == "tokens_per_sec>=5" and str(below) == "ttft_p99_ms<=5"
    assert (above.excess(4.0), below.excess(4.0)) == (1.0, -1.0)
