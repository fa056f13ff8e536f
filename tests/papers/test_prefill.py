"""Forms of a prefill's time: made-up deployments whose form is known, and the shipped verdict."""

import numpy as np
import pandas as pd
import pytest

from papers.calibration import prefill
from papers.calibration.prefill import FORMS, Prompts
from tests.support.recorded.reference_data import SHARED_DIR

REAL = SHARED_DIR / "data" / "splitwise_perf" / "perf_model.csv"
SMALL = Prompts(
    np.array([1.0, 1, 1, 1, 1, 1, 2, 4, 8]),
    np.array([128.0, 256, 512, 1024, 2048, 4096, 512, 512, 512]),
    np.ones(9),
)
LARGE = Prompts(np.array([16.0, 32, 64]), np.full(3, 512.0), np.ones(3))
TRUTH = {
    "linear": lambda of: 20 + 0.1 * of.tokens,
    "attention": lambda of: 20 + 0.1 * of.tokens + 1e-5 * of.tokens * of.prompt_size,
    "square": lambda of: 20 + 0.1 * of.tokens + 1e-6 * of.tokens**2,
    "knee": lambda of: 20 + 0.1 * of.tokens + 0.05 * np.maximum(of.tokens - 1536, 0),
    "floor": lambda of: np.maximum(70.0, 0.1 * of.tokens),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_finds_its_own_truth(name: str) -> None:
    fitted = SMALL._replace(time_ms=TRUTH[name](SMALL))
    assert FORMS[name](fitted, LARGE) == pytest.approx(TRUTH[name](LARGE), rel=0.02)


def test_a_line_misses_a_knee() -> None:
    fitted = SMALL._replace(time_ms=TRUTH["knee"](SMALL))
    assert np.all(FORMS["linear"](fitted, LARGE) < 0.95 * TRUTH["knee"](LARGE))


@pytest.mark.skipif(not REAL.is_file(), reason=f"{REAL} is not here")
def test_the_published_table() -> None:
    """What docs/results/calibration.md says of the forms."""
    rows = prefill.extrapolated(pd.read_csv(REAL), prefill.LARGEST_FITTED)
    assert len(rows) == 8
    sizes = {name: np.median([abs(row.prefill[name]) for row in rows]) for name in FORMS}
    assert all(row.prefill["linear"] < 0 for row in rows)
    assert sizes["floor"] < sizes["knee"] < sizes["linear"] < sizes["attention"] < sizes["square"]
    assert sizes["linear"] == pytest.approx(0.23, abs=0.01)
    assert np.median([abs(row.decode) for row in rows]) < 0.05


def test_other_files_are_refused(tmp_path, capsys) -> None:
    (tmp_path / "other.csv").write_text("model,hardware\na,b\n")
    for name, words in (("other.csv", "no column tensor_parallel"), ("none.csv", "does not exist")):
        assert prefill.main(["--data", str(tmp_path / name)]) == 2
        assert words in capsys.readouterr().err
