"""The command that measures how often a calibration's intervals hold what is true."""

import numpy as np
import pytest

from benchmarks.calibration_coverage import ALIKE, KINDS, TRUE, coverage, disturbances, main, server


def test_neighbours_are_alike_only_where_said():
    for kind in KINDS:
        drawn = disturbances(kind, 20_000, np.random.default_rng(0))
        assert drawn.std() == pytest.approx(1.0, abs=0.05)
        alike = ALIKE if kind == KINDS[1] else 0.0
        for row in drawn:
            assert np.corrcoef(row[1:], row[:-1])[0, 1] == pytest.approx(alike, abs=0.03)


def test_a_cost_that_is_not_fitted_makes_decoding_longer():
    plain, _ = server(KINDS[0], 30, 1)
    again, _ = server(KINDS[0], 30, 1)
    np.testing.assert_array_equal(plain.e2e_us, again.e2e_us)
    other, _ = server(KINDS[2], 30, 1)
    assert np.median(other.tpot_us) > 1.02 * np.median(plain.tpot_us)


def test_shares_are_of_servers():
    is_held, widths = coverage(KINDS[0], 2, 30, 1)
    assert is_held.shape == (2, len(TRUE)) and is_held.dtype == bool
    assert (widths > 0).all()


def test_sizes_that_say_nothing_are_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["--repetitions", "1"]) == 2
    assert "--repetitions: got 1, allowed is 2 or more" in capsys.readouterr().err
