"""Intervals of predictions, on made-up servers without a simulator."""

import json

import numpy as np
import pytest

from blis_jax.calibrate.fit import TTFT_FLOOR_US, Fit, fit
from blis_jax.calibrate.posterior import Predictive, disturbed, noise_of, redrawn
from blis_jax.calibrate.uncertainty import beyond_groups, uncertainty
from blis_jax.calibrate.validation import errors, errors_table, figures
from blis_jax.traces.measured.run import MeasuredRun
from tests.calibrate.test_exploration import NUM, TERMS, TRUE, Server

EVERYTHING = np.ones(NUM, bool)


def of_fit(server: Server) -> Predictive:
    """What the fit alone leaves open."""
    found = fit(server, server.target, TERMS, [TRUE * 0.7, TRUE * 1.4])
    noise = noise_of(server.run, server(found.values), EVERYTHING)
    return Predictive(TERMS, found.values[None], uncertainty(found).covariance, noise)


def test_intervals_hold_most_figures_of_the_run():
    server = Server(context=0.0)
    found = of_fit(server).intervals(server, server.run, EVERYTHING)
    measured = figures(server.run.ttft_us, server.run.e2e_us, server.rows.output_len)
    is_held = [low <= measured[key] <= high for key, (low, high) in found.items()]
    assert found.keys() == measured.keys() and sum(is_held) >= 11
    low, high = found["tpot_ms", "mean"]
    assert 0.005 < (high - low) / 2 / measured["tpot_ms", "mean"] < 0.05


def test_each_fit_that_is_not_excluded_counts():
    """A second fit with steps a fifth longer moves the upper ends, and hardly the lower ones."""
    server = Server(context=0.0)
    one = of_fit(server)
    fits = np.vstack([one.fits, one.fits * 1.2])
    both = Predictive(TERMS, fits, one.covariance, one.noise)
    narrow, wide = (each.intervals(server, server.run, EVERYTHING) for each in (one, both))
    for key, (low, high) in narrow.items():
        assert wide[key][1] > 1.1 * high and wide[key][0] == pytest.approx(low, rel=0.02)


def test_intervals_are_of_the_part():
    """Only requests of the part that were measured count."""
    server = Server(context=0.0)
    known = of_fit(server)
    is_part = np.arange(NUM) % 2 == 0
    some = MeasuredRun(
        server.rows, np.where(is_part, server.run.ttft_us, np.nan), server.run.e2e_us
    )
    assert known.intervals(server, some, EVERYTHING) == known.intervals(server, server.run, is_part)


def test_noise_is_drawn_as_alike_as_it_was():
    """An autoregression of 400 requests: spread, correlation and spread of a mean, within a fifth."""
    random = np.random.default_rng(4)
    noise = random.standard_normal((400, 2))
    for place in range(1, len(noise)):
        noise[place] = [0.8, 0.0] * noise[place - 1] + [0.6, 1.0] * noise[place]
    drawn = redrawn(0.1 * noise, 300, random)
    assert drawn.shape == (200, 300, 2)
    assert drawn.std(axis=(0, 1)) == pytest.approx([0.1, 0.1], rel=0.2)
    alike = [
        np.mean(drawn[:, 1:, k] * drawn[:, :-1, k]) / np.mean(drawn[..., k] ** 2) for k in (0, 1)
    ]
    assert alike == pytest.approx([0.8, 0.0], abs=0.1)
    # of means of 300, around a mean that 400 requests tell
    expected = 0.1 * np.sqrt(np.array([1.8 / 0.2, 1.0]) * (1 / 300 + 1 / 400))
    assert drawn.mean(axis=1).std(axis=0) == pytest.approx(expected, rel=0.35)


def test_noise_of_few_independent_requests_may_be_larger():
    """The same values, in stretches of one sign or shuffled: how far the spread of a draw goes."""
    random = np.random.default_rng(1)
    shuffled = 0.05 * random.standard_normal((150, 2))
    alike = np.sort(shuffled, axis=0)
    spread, wider = (redrawn(one, 300, random).std(axis=1) for one in (shuffled, alike))
    assert np.quantile(spread, 0.9) < 0.065 and np.quantile(wider, 0.9) > 0.08


def test_likeness_beyond_the_groups_is_seen():
    """A constant slope; residuals alike over many requests, or not at all, in the mean of 30 series."""
    noise = np.random.default_rng(2).standard_normal((30, 150, 2))
    for place in range(1, 150):
        noise[:, place, 0] = 0.95 * noise[:, place - 1, 0] + 0.31 * noise[:, place, 0]
    slopes = np.ones((150, 1, 1))

    def beyond(kind: int) -> float:
        residuals = [0.01 * series[:, kind, None] for series in noise]
        fits = [Fit(("beta0",), np.ones(1), 1.0, one, slopes, (1.0,)) for one in residuals]
        return float(np.mean([beyond_groups(one) for one in fits]))

    assert beyond(0) > 3.0 and 1.0 <= beyond(1) < 1.8
    few = Fit(("beta0",), np.ones(1), 1.0, np.ones((9, 1)), np.ones((9, 1, 1)), (1.0,))
    assert beyond_groups(few) == 1.0


def test_noise_that_is_taken_off_and_put_back():
    server = Server(context=0.0)
    exact = server(TRUE)
    noise = noise_of(server.run, exact, EVERYTHING)
    ttft, e2e = disturbed(
        exact.ttft_us[None], exact.e2e_us[None], server.rows.output_len, noise[None]
    )
    assert ttft[0] == pytest.approx(server.run.ttft_us)
    assert e2e[0] == pytest.approx(server.run.e2e_us)
    nothing, _ = disturbed(
        exact.ttft_us[None], exact.e2e_us[None], server.rows.output_len, noise[None] - 9
    )
    assert np.all(nothing == 0) and TTFT_FLOOR_US > 0


def test_the_file_has_it_and_damage_is_noticed():
    known = of_fit(Server(context=0.0))
    document = json.loads(json.dumps(known.document()))
    again = Predictive.of_document(document)
    assert again.terms == known.terms and again.fits == pytest.approx(known.fits, rel=1e-5)
    assert again.noise == pytest.approx(known.noise, abs=1e-4)
    for damage in (
        {"fits": []},
        {"fits": [[-1.0] * 4]},
        {"noise": [[None, 1]]},
        {"covariance": [1]},
    ):
        with pytest.raises((ValueError, TypeError)):
            Predictive.of_document({**document, **damage})


def test_rows_carry_their_intervals():
    server = Server(context=0.0)
    known = {("ttft_ms", "p99"): (1.0, 2.0)}
    run = server.run
    rows = errors(run, run.ttft_us, run.e2e_us, EVERYTHING, "held out", known)
    with_interval = [row.document() for row in rows if "low" in row.document()]
    assert [(row["metric"], row["statistic"]) for row in with_interval] == [*known]
    shown = [str(row.cells[4]) for row in errors_table(rows).rows]
    assert len(shown) == 3 * 4 and [one for one in shown if one.endswith("ms [1.0, 2.0]")]
