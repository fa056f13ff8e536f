"""The table of derivatives: its statistics, its verdicts, and its file."""

import math

import numpy as np
import pytest

from benchmarks.derivatives.__main__ import _ratio, main, pathwise_verdict, stretched
from benchmarks.derivatives.table import Line, as_csv, from_csv, table
from blis_jax.workload.table import NEVER_US, pad_to
from tests.support.scenes import Prompt, table_of, workload_of

LINE = Line(
    case="burst",
    clock="int32",
    kind="pathwise",
    parameter="beta0",
    metric="ttft_mean_ms",
    estimate=0.0123456,
    estimate_error=1e-5,
    difference=0.012,
    difference_low=0.011,
    difference_high=0.013,
    relative=0.0288,
    relative_error=0.001,
    share_changed=0.25,
    num_seeds=1000,
    verdict="bias: decisions flip",
)


@pytest.mark.parametrize(
    ("relative", "is_clear", "share", "verdict"),
    [
        (0.009, True, 0.0, "no decision flips: within 1 %"),
        (-0.05, True, 0.0, "bias: truncation to whole µs"),
        (0.05, True, 0.3, "bias: decisions flip"),
        (0.05, False, 0.3, "decisions flip, bias not told from 0"),
        (0.002, True, 0.3, "decisions flip, within 1 %"),
    ],
)
def test_verdicts_name_the_bias(relative, is_clear, share, verdict):
    assert pathwise_verdict(relative, is_clear, share) == verdict


def test_a_ratio_of_equal_figures_is_exact():
    values = np.array([1.0, 2.0, 4.0])
    assert _ratio(1.1 * values, values) == pytest.approx((0.1, 0.0))
    assert _ratio(values, np.zeros(3))[0] == math.inf
    rng = np.random.default_rng(0)
    found, stated = [], []
    for _ in range(400):
        difference = 2.0 + rng.standard_normal(100)
        relative, error = _ratio(difference + 0.5 * rng.standard_normal(100), difference)
        found.append(relative)
        stated.append(error)
    assert np.std(found) == pytest.approx(np.mean(stated), rel=0.15)


def test_arrivals_are_stretched_and_padding_is_left():
    given = pad_to(table_of(workload_of([Prompt(0, 5), Prompt(1000, 5)])), 4, 1, 1)
    longer = stretched(given, 1.5)
    assert np.asarray(longer.arrival_us).tolist() == [0, 1500, NEVER_US, NEVER_US]


def test_the_file_holds_the_rows():
    (again,) = from_csv(as_csv([LINE]))
    assert again == LINE
    text = table([LINE])
    assert "| burst | pathwise beta0 | ttft_mean_ms |" in text
    assert "+2.88 % ± 0.10 | 25.0 % | bias: decisions flip |" in text


def test_bad_calls_end_in_one_sentence(capsys, tmp_path):
    assert main(["--cases", "bursts"]) == 2
    assert "there are apart" in capsys.readouterr().err
    assert main(["--seeds", "1"]) == 2
    assert "allowed is 2 or more" in capsys.readouterr().err
    file = tmp_path / "some.csv"
    file.write_text(as_csv([LINE]))
    assert main(["--seeds", "50", "--resume", "--output", str(file)]) == 2
    assert "another number of seeds" in capsys.readouterr().err


def test_a_complete_file_is_printed_again(capsys, tmp_path):
    file = tmp_path / "some.csv"
    file.write_text(as_csv([LINE]))
    assert main(["--cases", "burst", "--resume", "--output", str(file)]) == 0
    assert "bias: decisions flip" in capsys.readouterr().out
