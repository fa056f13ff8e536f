"""Arithmetic that must round as numpy does, whatever the compiler would like to do with it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.backend import CPU_FLAG
from blis_jax.core.exact import (
    FEW_ENTRIES,
    exact_product,
    exact_quotient,
    first_equal,
    greatest,
    least,
    runtime_infinity,
    truncate,
)
from blis_jax.core.outcome import WHOLE
from blis_jax.core.types import LAST
from blis_jax.core.views import StepBatch
from blis_jax.latency.blackbox import blackbox, queueing_time
from tests.support.recorded.reference_data import REPO_ROOT
from tests.support.scenes import differences, flags, run_both

SIZE = 200_000
INFINITY = np.float64(np.inf)


def two_decimals(rng: np.random.Generator, high: float, size: int = SIZE) -> np.ndarray:
    return np.round(rng.uniform(0, high, size), 2)


def check_step_times() -> int:
    """Counts truncated step times that differ from numpy's; coefficients have two decimals."""
    rng = np.random.default_rng(11)
    beta = np.stack([two_decimals(rng, high) for high in (9000, 30, 9)], axis=1)
    prefill, decode = rng.integers(0, 4096, SIZE), rng.integers(0, 512, SIZE)

    def one(
        beta: jax.Array, prefill: jax.Array, decode: jax.Array, infinity: jax.Array
    ) -> jax.Array:
        with runtime_infinity(infinity):
            return truncate(blackbox.step_time(beta, StepBatch(prefill, decode)), jnp.int32)

    mine = jax.jit(jax.vmap(one, in_axes=(0, 0, 0, None)))(beta, prefill, decode, INFINITY)
    expected = (beta[:, 0] + beta[:, 1] * prefill + beta[:, 2] * decode).astype(np.int32)
    return int(np.count_nonzero(np.asarray(mine) != expected))


def check_queueing_times() -> int:
    rng = np.random.default_rng(12)
    alpha = np.stack([two_decimals(rng, high) for high in (3000, 9, 3000)], axis=1)
    input_len = rng.integers(1, 100_000, SIZE).astype(np.int32)

    @jax.jit
    def function(a: jax.Array, n: jax.Array, infinity: jax.Array) -> jax.Array:
        with runtime_infinity(infinity):
            return truncate(queueing_time(a, n), jnp.dtype(jnp.int32))

    expected = (alpha[:, 0] + alpha[:, 1] * input_len).astype(np.int32)
    return int(np.count_nonzero(np.asarray(function(alpha, input_len, INFINITY)) != expected))


def check_products() -> int:
    """Sums of products, bit for bit: no product is contracted into the sum."""
    rng = np.random.default_rng(13)
    a, b, c = (two_decimals(rng, 1000) for _ in range(3))

    @jax.jit
    def inside(a: jax.Array, b: jax.Array, c: jax.Array, infinity: jax.Array) -> jax.Array:
        with runtime_infinity(infinity):
            return c + exact_product(a, b)

    outside = jax.jit(lambda a, b, c: c + exact_product(a, b))
    found = inside(a, b, c, INFINITY), outside(a, b, c)
    return sum(int(np.count_nonzero(np.asarray(mine) != c + a * b)) for mine in found)


def check_quotients() -> int:
    """By a constant, by a broadcast scalar, and element by element."""
    rng = np.random.default_rng(14)
    numerator = rng.integers(0, 10**6, SIZE).astype(np.float64)
    divisor = rng.integers(1, 10**4, SIZE).astype(np.float64)
    count = 0
    for constant in (3.0, 7.0, 49.0, 1e6):
        by_constant = jax.jit(lambda n, constant=constant: exact_quotient(n, jnp.float64(constant)))
        by_scalar = jax.jit(exact_quotient)
        for mine in (by_constant(numerator), by_scalar(numerator, np.float64(constant))):
            count += int(np.count_nonzero(np.asarray(mine) != numerator / constant))
    by_element = jax.jit(exact_quotient)(numerator, divisor)
    return count + int(np.count_nonzero(np.asarray(by_element) != numerator / divisor))


def check_scores() -> int:
    """Weighted sums of tied quotients stay tied exactly where numpy's do."""
    rng = np.random.default_rng(15)
    loads = rng.integers(0, 6, (SIZE // 8, 8)).astype(np.float64)
    matched = rng.integers(0, 4, (SIZE // 8, 8)).astype(np.float64)
    weights = np.array([3.0, 2.0, 2.0])

    def chosen(
        loads: jax.Array, matched: jax.Array, weights: jax.Array, inf: jax.Array
    ) -> jax.Array:
        with runtime_infinity(inf):
            return jnp.argmax(totals(loads, matched, weights))

    def totals(loads: jax.Array, matched: jax.Array, weights: jax.Array) -> jax.Array:
        share = exact_quotient(weights, jnp.sum(weights))
        most, least = jnp.max(loads), jnp.min(loads)
        by_depth = exact_quotient(most - loads, jnp.maximum(most - least, 1.0))
        total = exact_product(exact_quotient(matched, jnp.float64(3.0)), share[0])
        total = total + exact_product(by_depth, share[1])
        total = total + exact_product(exact_quotient(jnp.float64(1.0), 1.0 + loads), share[2])
        return total

    mine = jax.jit(jax.vmap(chosen, in_axes=(0, 0, None, None)))(loads, matched, weights, INFINITY)
    share = weights / weights.sum()
    most, least = loads.max(axis=1, keepdims=True), loads.min(axis=1, keepdims=True)
    total = (matched / 3.0) * share[0]
    total = total + ((most - loads) / np.maximum(most - least, 1.0)) * share[1]
    total = total + (1.0 / (1.0 + loads)) * share[2]
    return int(np.count_nonzero(np.asarray(mine) != total.argmax(axis=1)))


def check_quotients_of_lanes() -> int:
    """Lanes that share a divisor: the vectorised loop broadcasts it after the barrier was placed."""
    rng = np.random.default_rng(16)
    numerator = rng.integers(0, 10**9, SIZE).astype(np.float64)
    count = 0
    for divisor in (13.0, 49.0, 1e6):
        constant = jax.jit(jax.vmap(lambda n, d=divisor: exact_quotient(n, jnp.float64(d))))
        shared = jax.jit(jax.vmap(exact_quotient, in_axes=(0, None)))
        for mine in (constant(numerator), shared(numerator, np.float64(divisor))):
            count += int(np.count_nonzero(np.asarray(mine) != numerator / divisor))
    return count


CHECKS = (check_step_times, check_queueing_times, check_products, check_quotients, check_scores)
CHECKS += (check_quotients_of_lanes,)


@pytest.mark.parametrize("check", CHECKS)
def test_equals_numpy(check):
    with jax.enable_x64(True):
        assert check() == 0


IN_A_FRESH_PROCESS = (
    "import jax; jax.config.update('jax_enable_x64', True); from tests.core.test_exact import CHECKS; "
    "print([check() for check in CHECKS])"
)


@pytest.mark.parametrize(
    "xla_flags",
    ["", CPU_FLAG, "--xla_cpu_max_isa=AVX", f"--xla_cpu_max_isa=AVX {CPU_FLAG}"],
    ids=["plain", "one function", "without fused multiply-add", "both"],
)
def test_equals_numpy_under_any_compiler_flags(xla_flags: str):
    environment = os.environ | {"XLA_FLAGS": xla_flags, "PYTHONPATH": str(REPO_ROOT)}
    command = [sys.executable, "-c", IN_A_FRESH_PROCESS]
    done = subprocess.run(command, env=environment, cwd=REPO_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str([0] * len(CHECKS))


def test_truncates_toward_zero_in_every_clock():
    values = np.array([0.0, 0.999, 1.0, 2.5, 12345.999999, -0.7, -1.5])
    expected = np.array([0, 0, 1, 2, 12345, 0, -1])
    with jax.enable_x64(True):
        for dtype in (jnp.int32, jnp.int64, jnp.float64):
            mine = truncate(jnp.asarray(values), jnp.dtype(dtype))
            assert mine.dtype == dtype
            np.testing.assert_array_equal(mine, expected)


@pytest.mark.parametrize("size", [1, 64, 65, 1000, 2049, 5000])
def test_the_least_and_the_greatest_of_vectors_of_any_length(size: int):
    rng = np.random.default_rng(size)

    @jax.jit
    def of_all(values: jax.Array, sought: jax.Array) -> tuple[jax.Array, ...]:
        at = first_equal(lambda start, stop: values[start:stop], size, sought)
        return least(values), greatest(values), at

    with jax.enable_x64(True):
        for dtype, most in ((np.int32, size // 3 + 2), (np.int32, 2**31 - 1), (np.float64, 40)):
            values = rng.integers(-2, most, size).astype(dtype)
            found = [each.item() for each in of_all(values, values.max())]
            assert found == [values.min(), values.max(), np.argmax(values)]
            assert int(of_all(values, dtype(-3))[2]) == LAST


def test_a_long_vector_is_reduced_side_by_side():
    """XLA's own reductions of a CPU, windows of 32 entries one by one, take five times as long."""
    with jax.enable_x64(True):
        values = jnp.zeros(5000, jnp.int32)
        text = jax.jit(lambda v: (least(v), greatest(v))).lower(values).as_text()
    reduced = [int(size) for size in re.findall(r"stablehlo.reduce.*tensor<(\d+)xi32>", text)]
    assert len(reduced) == 2 and max(reduced) <= FEW_ENTRIES


def test_truncation_on_the_float_clock_passes_derivatives_through():
    with jax.enable_x64(True):
        slope = jax.grad(lambda value: truncate(value, jnp.dtype(jnp.float64)))(jnp.float64(2.7))
    assert float(slope) == 1.0


@pytest.mark.golden
def test_whole_engine_with_two_decimal_coefficients(golden_dir: Path):
    """The baseline's thousand requests, with coefficients whose step times end near whole numbers."""
    track = golden_dir / "scheduling"
    with np.load(track / "workloads" / "mixed_s42_82b7ddd3.npz") as file:
        workload = dict(file)
    settings = flags(
        num_instances=8,
        alpha_coeffs=[1601.35, 3.51, 1805.54],
        beta_coeffs=[6910.42, 17.67, 2.83],
        total_kv_blocks=132139,
        long_prefill_token_threshold=256,
        routing_policy="weighted",
        scheduler="priority-fcfs",
        priority_policy="slo-tiered",
    )
    record, expected = run_both(workload, settings)
    assert record.outcome in WHOLE
    assert not differences(record, expected)
