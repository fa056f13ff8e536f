"""The fits to four measured runs: what is shipped keeps the bars that docs/results/calibration.md states."""

from pathlib import Path

import pandas as pd
import pytest

from papers.calibration import __main__ as paper
from papers.calibration import tables
from tests.support.recorded.reference_data import SHARED_DIR

REAL = SHARED_DIR / "data" / "vllm_bench_llmservingsim"
SHIPPED = Path(paper.__file__).parent / "data" / "errors.csv"
needs_runs = pytest.mark.skipif(not REAL.is_dir(), reason=f"{REAL} is not here")


def _rows() -> list[dict]:
    return pd.read_csv(SHIPPED).to_dict("records")


def test_all_runs_keep_the_bars_with_the_context_term():
    """Also the one whose requests are evicted, which keep their output as in vLLM."""
    within = [name for name in paper.RUNS if tables._is_within(_rows(), name, "with context")]
    assert within == list(paper.RUNS)
    verdicts = tables._verdicts(_rows(), paper.RUNS)
    assert verdicts[0].endswith("not kept") and verdicts[1].endswith(": kept")


def test_fits_beat_the_naive_prediction():
    """Mean TPOT and E2E of the requests held out."""
    errors = {
        (row["run"], row["of"], row["metric"]): abs(row["error"])
        for row in _rows()
        if (row["model"], row["part"], row["statistic"]) == ("with context", "first", "mean")
    }
    for name in paper.RUNS:
        for metric in ("tpot_ms", "e2e_ms"):
            assert errors[name, "held out", metric] < 0.5 * errors[name, "naive", metric]


def test_rows_are_complete():
    table = pd.read_csv(SHIPPED)
    assert len(table) == len(paper.RUNS) * len(tables.TERMS) * (4 + 1) * 12
    assert table["error"].notna().all()


@needs_runs
def test_the_naive_prediction_stands_below_the_fits():
    lines = tables._tables(_rows(), [], REAL, paper.RUNS).splitlines()
    assert lines[0].startswith("Fitted on the first 150") and "same episode" in lines[0]
    models = [line[40:54].strip() for line in lines[2:14]]
    assert models == ["blackbox", "with context", "naive"] * 4
    assert lines[4].split()[2] == "-71.2"  # the TTFT mean of the RTX 4090


@needs_runs
def test_published_errors_are_read():
    found = tables.published(REAL / "RTXPRO6000_Llama-3.1-8B" / "summary.txt")
    assert found["ttft_ms", "mean"] == pytest.approx(-0.040, abs=5e-4)
    assert found["e2e_ms", "p50"] == pytest.approx(-0.012, abs=5e-4)
    assert found["tpot_ms", "p99"] == pytest.approx(0.008, abs=5e-4) and len(found) == 15


@needs_runs
@pytest.mark.slow
def test_a_fit_gives_the_shipped_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Another machine may end a descent elsewhere: means agree within half a percent."""
    name = "RTXPRO6000_Llama-3.1-8B"
    assert paper.main(["--data", str(REAL), "--runs", name, "--output", str(tmp_path)]) == 0
    assert "Fitted on the first 150" in capsys.readouterr().out
    made = pd.read_csv(tmp_path / "errors.csv")
    shipped = pd.read_csv(SHIPPED)
    key = ["run", "model", "part", "of", "metric", "statistic"]
    both = made.merge(shipped[shipped["run"] == name], on=key, validate="one_to_one")
    means = both[both["statistic"] == "mean"]
    assert len(means) == 2 * 5 * 3  # models, what is fitted and predicted (`naive` too), metrics
    held = means[means["of"] != "fitted"]
    assert (held["error_x"] - held["error_y"]).abs().max() < 0.005


def test_missing_runs_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert paper.main(["--data", str(tmp_path)]) == 2
    assert "does not exist" in capsys.readouterr().err
