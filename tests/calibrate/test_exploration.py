"""Exploring on made-up servers without a simulator, whose latencies are lines in the coefficients."""

import numpy as np
import pytest

from blis_jax.calibrate.fit import Fit, FitTarget, Latencies, fit, improved
from blis_jax.calibrate.uncertainty import Exploration, explore, uncertainty, widened
from blis_jax.traces.measured.run import MeasuredRun
from blis_jax.traces.rows import make_rows

TERMS = ("alpha0", "beta0", "beta1", "beta2")
WIDER = (*TERMS, "beta3")
TRUE = np.array([9000.0, 7000.0, 38.0, 90.0])
NUM = 80


class Server:
    """TTFT = α0 + β1 · prompt; TPOT = β0 + β2 · batch + β3 · context."""

    def __init__(self, context: float, trade: float = 0.0) -> None:
        """`trade` is how much the batch follows the context."""
        random = np.random.default_rng(5)
        self.rows = make_rows(
            np.arange(NUM) * 10_000.0,
            random.integers(100, 900, NUM),
            random.integers(20, 120, NUM),
        )
        tokens = random.uniform(1000.0, 9000.0, NUM)
        batch = (1 - trade) * random.uniform(2.0, 20.0, NUM) + trade * tokens / 450.0
        self.slopes = np.stack([np.ones(NUM), batch, tokens], axis=1)  # of β0, β2, β3
        exact = self(np.array([*TRUE, context]))
        noise = np.exp(0.02 * random.standard_normal((2, NUM)))
        ttft = exact.ttft_us * noise[0]
        self.run = MeasuredRun(self.rows, ttft, ttft + (exact.e2e_us - exact.ttft_us) * noise[1])
        self.target = FitTarget(self.run, np.ones(NUM, bool))

    def __call__(self, values: np.ndarray) -> Latencies:
        ttft = values[0] + values[2] * self.rows.input_len
        decode = (self.rows.output_len - 1.0)[:, None] * self.slopes[:, : len(values) - 2]
        d_ttft = np.zeros((NUM, len(values)))
        d_ttft[:, 0], d_ttft[:, 2] = 1.0, self.rows.input_len
        d_e2e = d_ttft.copy()
        places = [1, 3, 4][: decode.shape[1]]
        d_e2e[:, places] += decode
        return Latencies(ttft, ttft + decode @ values[places], d_ttft, d_e2e)


def fitted(server: Server) -> Fit:
    return fit(server, server.target, TERMS, [TRUE * 0.7, TRUE * 1.4])


def explored(server: Server, found: Fit) -> Exploration:
    return explore(
        server, server.target, found, uncertainty(found), WIDER, [np.array([*TRUE, 0.1])]
    )


def test_intervals_hold_what_is_true_where_the_form_is_right():
    server = Server(context=0.0)
    found = fitted(server)
    ends = explored(server, found)
    assert np.all(ends.values >= 0) and len(ends.costs) == len(ends.values)
    known = widened(uncertainty(found), found, ends)
    assert np.all((known.intervals[:, 0] <= TRUE) & (known.intervals[:, 1] >= TRUE))
    assert known.is_identified == (True, True, True, True)
    assert not any("--context-term" in remark for remark in known.remarks)


def test_a_cost_that_the_fit_lacks_is_found_and_said():
    """Without exploring, no interval of the decode tokens' cost holds the true one."""
    server = Server(context=0.4, trade=0.5)
    found = fitted(server)
    local = uncertainty(found)
    assert local.intervals[3, 0] > 1.2 * TRUE[3] and local.is_identified[3]
    known = widened(local, found, explored(server, found))
    assert known.intervals[3, 0] <= TRUE[3] <= known.intervals[3, 1]
    assert not known.is_identified[3]
    assert any(
        remark.startswith("beta2 is not identifiable here: fits") for remark in known.remarks
    )
    assert any("add --context-term" in remark for remark in known.remarks)


def test_draws_go_as_far_as_the_intervals():
    server = Server(context=0.4, trade=0.5)
    found = fitted(server)
    local = uncertainty(found)
    known = widened(local, found, explored(server, found))
    stretch = np.diff(known.intervals)[:, 0] / (2 * (local.intervals[:, 1] - found.values))
    np.testing.assert_allclose(
        np.sqrt(np.diag(known.covariance)), np.sqrt(np.diag(local.covariance)) * stretch
    )
    np.testing.assert_array_equal(known.correlations, local.correlations)


def test_only_ends_that_do_nearly_as_well_count():
    values = np.array([[5.0], [6.0], [5.0], [9.0]])
    found = Exploration(("beta0",), values, np.array([10.0, 14.9, 10.0, 15.1]), 5.0, 0)
    best = Fit(("beta0",), np.array([5.5]), 10.0, np.zeros((1, 1)), np.zeros((1, 1, 1)), (10.0,))
    assert found.near(best).tolist() == [[5.0], [5.5], [6.0]] and found.best.tolist() == [5.0]


def test_the_cost_that_the_fit_lacks_has_a_path_too():
    """Ends of the wider form with a cost of context on both sides of the true one."""
    server = Server(context=0.1)
    ends = explored(server, fitted(server))
    context = ends.near(fitted(server))[:, -1]
    assert context.min() < 0.1 < context.max() and len(np.unique(context)) > 5


def test_neighbours_that_err_alike_exclude_less():
    """The same residuals, in stretches of one sign or shuffled."""
    server = Server(context=0.0)
    found = fitted(server)
    order = np.argsort(found.residuals[:, 2])
    alike = Fit(
        **{**vars(found), "residuals": found.residuals[order], "jacobian": found.jacobian[order]}
    )
    assert uncertainty(alike).alikeness > uncertainty(found).alikeness >= 1.0


def test_a_better_fit_is_taken_and_a_worse_one_is_not():
    server = Server(context=0.0)
    best = fitted(server)
    poor = Fit(
        **{**vars(best), "values": TRUE * 2.0, "cost": best.cost + 100.0}
    )  # fmt: skip
    again = improved(server, server.target, poor, TRUE)
    assert again.values == pytest.approx(best.values, rel=1e-3)
    assert again.cost == pytest.approx(best.cost, rel=1e-6)
    assert again.num_simulations > poor.num_simulations
    same = improved(server, server.target, best, TRUE * 3.0)
    assert same.cost <= best.cost
