"""The table of total indices, of a tiny space and of the saved data."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from papers.sensitivity.__main__ import main
from papers.sensitivity.table import DATA, TABLE, count_words, printed, rows_of
from sweeps.sensitivity.indices import FIGURES
from tests.sweeps.tiny import TINY


def made_up(surrogate_shift: float | None) -> xr.Dataset:
    """A study of one metric that varies and one that does not, with two parameters."""
    models = ["simulator"] if surrogate_shift is None else ["simulator", "surrogate"]
    total = np.full((len(models), 2, 2, 3), np.nan)
    total[0, 0] = [[0.8, 0.7, 0.9], [0.01, 0.005, 0.02]]
    if surrogate_shift is not None:
        total[1, 0] = total[0, 0] + [[surrogate_shift], [0.0]]
    dummy = np.full((len(models), 2, 3), np.nan)
    dummy[:, 0] = [0.01, 0.008, 0.012]
    dims = ("model", "metric", "parameter", "figure")
    return xr.Dataset(
        {
            "total_order": (dims, total),
            "first_order": (dims, total),
            "dummy_total_order": (("model", "metric", "figure"), dummy),
        },
        {
            "model": models,
            "metric": ["ttft_p99_ms", "reject_rate"],
            "parameter": ["a", "b"],
            "figure": list(FIGURES),
        },
    )


def test_rows_are_of_metrics_that_vary() -> None:
    rows = rows_of("space", made_up(None))
    assert [(row["metric"], row["parameter"]) for row in rows] == [
        ("ttft_p99_ms", "a"),
        ("ttft_p99_ms", "b"),
    ]
    assert [row["simulator_verdict"] for row in rows] == [
        "matters",
        "not distinguishable from noise",
    ]
    assert "agree" not in rows[0]
    assert "no surrogate was given" in count_words(pd.DataFrame(rows))


def test_a_surrogate_agrees_where_intervals_overlap(tmp_path: Path) -> None:
    rows = (
        rows_of("near", made_up(0.1)) + rows_of("far", made_up(-0.5)) + rows_of("x", made_up(None))
    )
    table = pd.DataFrame(rows)
    table.to_csv(tmp_path / "t.csv", index=False)
    for one in (table, pd.read_csv(tmp_path / "t.csv")):
        lines = printed(one)
        answer = " ".join(" ".join(lines).split())
        assert "bootstrap intervals meet: near 2 of 2, far 1 of 2. With" in answer
        assert "these meet: near 2 of 2, far 1 of 2. Sure: " in answer
        assert [line.split()[-1] for line in lines if line.startswith("  ttft")] == [
            "yes", "yes", "no", "yes", "–", "–",
        ]  # fmt: skip


def test_noise_widens_what_agrees() -> None:
    """Intervals 0.7 to 0.9 and 0.95 to 1.15 meet if the second may be 0.3 too high."""
    study = made_up(0.25)
    study["dummy_total_order"][1, 0] = [0.2, 0.1, 0.3]
    row = rows_of("x", study)[0]
    assert row["agree"] and not row["agree_bootstrap"]
    line = printed(pd.DataFrame([row]))[-1]
    assert line.split("a  ", 1)[1].split("  ") == [
        "0.800 [0.700, 0.900]", "", "1.050 [0.950, 1.150]", "", "no", "", "[0.688, 0.900]", "",
        "", "[0.650, 1.150]", "", "", "yes",
    ]  # fmt: skip


def test_saved_indices_are_whole() -> None:
    table = pd.read_csv(DATA / TABLE)
    assert {"iter08_token_budget"} <= set(table["space"])
    inside = table["simulator_total_low"] <= table["simulator_total_high"]
    assert inside.all()
    assert set(table["simulator_verdict"]) <= {
        "matters",
        "no effect",
        "not distinguishable from noise",
    }


def test_saved_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--saved"]) == 0
    out = capsys.readouterr().out
    assert "iter08_token_budget, total indices" in out and "max_tokens" in out
    table, apart = pd.read_csv(DATA / TABLE), 0
    lines = [line for line in out.splitlines() if line.startswith("  ") and "[0" in line]
    for line, row in zip(lines, table.itertuples(), strict=True):
        cells = re.split(r"\s{2,}", line.strip())
        ends = [
            [float(end) for end in cell.replace("−", "-").partition("[")[2][:-1].split(", ")]
            for cell in (*cells[1:3], *cells[4:6])
        ]
        for (one, other), word in ((ends[:2], cells[3]), (ends[2:], cells[6])):
            overlap = min(one[1], other[1]) - max(one[0], other[0])
            assert overlap >= -0.0011 if word == "yes" else overlap <= 0.0011, row  # as rounded
        apart += cells[3] == "no" and cells[6] == "yes"
    assert apart == (table["agree"] & ~table["agree_bootstrap"]).sum() > 0


def test_spaces_without_parameters_or_surrogates_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["--spaces", "iter00_baseline"]) == 2
    assert "has no parameters" in capsys.readouterr().err
    assert main(["--surrogates", str(tmp_path)]) == 2
    assert "has no folder named as one of" in capsys.readouterr().err


@pytest.mark.slow
def test_a_space_is_computed_and_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = tmp_path / "tiny.yaml"
    strategy.write_text(TINY)
    words = ["--spaces", str(strategy), "--base", "16", "--num-seeds", "4", "--no-figures"]
    words += ["--output", str(tmp_path / "out")]
    assert main(words) == 0
    first = (tmp_path / "out" / TABLE).read_text()
    assert main(words) == 0
    assert (tmp_path / "out" / TABLE).read_text() == first
