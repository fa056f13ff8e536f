"""The command that measures how often a calibration's intervals hold what is true."""

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.coverage.calibration import (
    ALIKE,
    KINDS,
    TRUE,
    _cells,
    coverage,
    disturbances,
    main,
    server,
)
from blis_jax.calibrate import calibration


def test_neighbours_are_alike_only_where_said():
    for kind in KINDS:
        drawn = disturbances(kind, 20_000, np.random.default_rng(0))
        assert drawn.std() == pytest.approx(1.0, abs=0.05)
        alike = ALIKE if kind == KINDS[1] else 0.0
        for row in drawn:
            assert np.corrcoef(row[1:], row[:-1])[0, 1] == pytest.approx(alike, abs=0.03)


@pytest.mark.slow
def test_a_cost_that_is_not_fitted_makes_decoding_longer():
    plain, _ = server(KINDS[0], 30, 1)
    again, _ = server(KINDS[0], 30, 1)
    np.testing.assert_array_equal(plain.e2e_us, again.e2e_us)
    other, _ = server(KINDS[2], 30, 1)
    assert np.median(other.tpot_us) > 1.02 * np.median(plain.tpot_us)


def test_shares_are_of_servers(monkeypatch: pytest.MonkeyPatch):
    """Three fits whose intervals are given: off, and as wide as is said, in known places."""
    centres = iter([(0.0, 0.0, 0.0, 0.0), (0.03, 0.0, 0.0, 0.0), (0.03, 0.0, -0.5, 0.0)])
    halves = np.array([0.02, 0.01, 0.3, 0.0])  # of the true value

    def fitted(*_, **__):
        offset = np.array(next(centres))
        ends = TRUE[:, None] * (1 + offset[:, None] + np.outer(halves, [-1, 1]))
        known = SimpleNamespace(intervals=ends, is_identified=(True, False, offset[2] == 0, True))
        return SimpleNamespace(uncertainty=known)

    monkeypatch.setattr(calibration, "calibrate", fitted)
    found = coverage(KINDS[0], range(3), 20, 1, explores=True)
    expected = [[True, True, True, True], [False, True, True, True], [False, True, False, True]]
    np.testing.assert_array_equal(found.is_held, expected)
    np.testing.assert_allclose(found.half_widths, halves)
    cells = _cells(found)
    assert [cell.partition("; ")[2] for cell in cells] == [
        *("identified 1 of 3", "identified 0 of 0", "identified 2 of 2", "identified 3 of 3")
    ]
    assert cells[0].startswith("33.3 % [")


@pytest.mark.slow
def test_a_fit_goes_through_the_whole_benchmark(capsys: pytest.CaptureFixture[str]):
    assert (
        main(["--repetitions", "2", "--requests", "20", "--starts", "1", "--explore", "false"]) == 0
    )
    rows = capsys.readouterr().out.splitlines()
    assert [row.split(" | ")[0] for row in rows[2:5]] == [f"| {kind}" for kind in KINDS]
    assert "2 servers each, 20 requests, 1 starts" in rows[5]


def test_sizes_that_say_nothing_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["--repetitions", "1"]) == 2
    assert "--repetitions: got 1, allowed is 2 or more" in capsys.readouterr().err
