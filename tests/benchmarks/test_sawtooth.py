"""Ramps and jumps of a metric along a coefficient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.derivatives import sawtooth
from benchmarks.derivatives.sawtooth import Walk, parts_of, table


def made_walk() -> Walk:
    """0.5 ms a µs and 2 ms a µs, with one flip after which both are 3 ms lower."""
    beta0 = np.linspace(100.0, 104.0, 9)
    jump = np.where(beta0 > 102.2, -3.0, 0.0)
    values = np.stack([0.5 * beta0 + jump, 2.0 * beta0 + jump], axis=1)
    slopes = np.broadcast_to([0.5, 2.0], values.shape)
    return Walk(beta0, values, slopes, (beta0 > 102.2).astype(int), np.ones((9, 4)))


def test_ramps_and_jumps_add_up_to_the_change() -> None:
    parts = parts_of(made_walk())
    np.testing.assert_allclose(parts.ramps, [2.0, 8.0])
    np.testing.assert_allclose(parts.jumps, [-3.0, -3.0])
    assert parts.share_flipped == 1 / 8
    assert parts.worst < 1e-12
    shown = table([parts, parts], 4.0)
    assert "| ttft_mean_ms | -0.2500 ± 0.0000 | 0.5000 ± 0.0000 | -0.7500 ± 0.0000 |" in shown


def test_a_jump_without_a_flip_is_told() -> None:
    walk = made_walk()
    parts = parts_of(Walk(walk.beta0, walk.values, walk.slopes, np.zeros(9, int), np.ones((9, 4))))
    np.testing.assert_allclose(parts.jumps, 0.0)
    assert parts.worst == pytest.approx(3.0)


@pytest.mark.slow
def test_between_flips_the_simulator_follows_its_slopes(tmp_path: Path) -> None:
    walk = sawtooth.walks_of([42], 12)[0]
    parts = parts_of(walk)
    assert 0 < parts.share_flipped < 1 and parts.worst < 1e-9
    np.testing.assert_allclose(parts.ramps + parts.jumps, walk.values[-1] - walk.values[0])
    sawtooth.draw(walk, tmp_path / "saw.png")
    assert (tmp_path / "saw.png").stat().st_size > 5000


def test_sizes_that_say_nothing_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert sawtooth.main(["--seeds", "1"]) == 2
    assert "--seeds: got 1, allowed is 2 or more" in capsys.readouterr().err
    assert sawtooth.main(["--figure", "saw.gif"]) == 2
    assert "--figure: 'saw.gif' must end in .png" in capsys.readouterr().err
