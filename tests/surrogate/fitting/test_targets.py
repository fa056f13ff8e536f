import numpy as np

from surrogate.fitting.targets import Scales, compact, pool_means, scales_of


def thinned(runs: np.ndarray, kept: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    thin = np.full_like(runs, np.nan)
    for point in range(len(runs)):
        chosen = rng.permutation(runs.shape[1])[:kept]
        thin[point, chosen] = runs[point, chosen]
    return thin


def test_seed_effects_are_taken_out_as_factors_and_as_summands() -> None:
    rng = np.random.default_rng(1)
    factor, summand = rng.lognormal(0, 0.3, 12), rng.normal(0, 2, 12)
    point = np.linspace(1, 5, 40)
    runs = np.stack([point[:, None] * factor, point[:, None] - 3 + summand], axis=2)
    found = pool_means(thinned(runs, 4))
    np.testing.assert_allclose(found, runs.mean(axis=1), rtol=1e-3, atol=1e-3)
    plain = np.nanmean(thinned(runs, 4), axis=1)
    assert np.abs(plain - runs.mean(axis=1)).max() > 0.3  # what is left in without


def test_full_runs_give_their_plain_means() -> None:
    runs = np.random.default_rng(2).lognormal(size=(9, 5, 2))
    np.testing.assert_array_equal(pool_means(runs), runs.mean(axis=1))


def test_scales_pick_logarithms_bounds_and_constants() -> None:
    rng = np.random.default_rng(3)
    runs = np.stack(
        [rng.lognormal(3, 1, (30, 4)), rng.uniform(0, 1, (30, 4)), np.full((30, 4), 2.5)], axis=2
    )
    runs[0, 0, 1] = 0.0
    scales = scales_of(runs, runs.mean(axis=1), ("ms", "1", "1"))
    latency, share, constant = scales.entries
    assert latency.is_log and latency.low == 0 and latency.high is None
    assert not share.is_log and (share.low, share.high) == (0, 1)
    assert constant.is_constant and constant.center == 2.5
    z = scales.standardized(runs.mean(axis=1))
    assert z.shape == (30, 2) and z.dtype == np.float32
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(z.std(axis=0), 1, atol=1e-5)
    assert Scales.from_json(scales.to_json()) == scales


def test_compact_keeps_every_run_of_a_point() -> None:
    runs = thinned(np.random.default_rng(4).normal(size=(6, 5, 2)), 3)
    packed = compact(runs)
    assert packed.shape == (6, 3, 2)
    np.testing.assert_allclose(np.nansum(packed, axis=1), np.nansum(runs, axis=1))


def test_an_output_that_seeds_alone_decide_is_in_units_of_their_spread() -> None:
    """Means over seeds in another order differ in their last digits, which are no unit."""
    seeds = np.array([0.1, 0.2, 0.7])
    runs = np.stack([seeds, seeds[::-1], seeds[[1, 2, 0]]])[..., None]
    means = runs.sum(axis=1) / 3
    means[0] += 1e-16  # as rounding does
    assert 0 < means.std() < 1e-15
    (scale,) = scales_of(runs, means, ["ms"]).entries
    assert not scale.is_constant and abs(scale.width - 0.6) < 1e-12
