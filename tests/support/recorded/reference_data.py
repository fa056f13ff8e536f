"""Where the recorded results of the reference simulator lie, if they are here at all."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.golden import committed

REPO_ROOT = Path(__file__).resolve().parents[3]
SHARED_DIR = REPO_ROOT.parent / "shared"


REVISIONS = ("routing", "scheduling")  # folders of the revision that is reproduced


def find_golden_dir() -> Path | None:
    """The full golden set beside the checkout, else the committed copy, else None."""
    full = SHARED_DIR / "golden"
    folder = full if full.is_dir() else committed()
    return folder if folder.is_dir() else None


def assert_totals_equal(totals: Any, recorded: Any, where: str = "") -> None:
    """Everything that is in `totals` as recorded; integers exact, floats within 1e-12."""
    if isinstance(totals, dict):
        for name, value in totals.items():
            assert name in recorded, f"{where}/{name}"
            assert_totals_equal(value, recorded[name], f"{where}/{name}")
    elif isinstance(totals, list):
        assert len(totals) == len(recorded), where
        for index, (value, other) in enumerate(zip(totals, recorded, strict=True)):
            assert_totals_equal(value, other, f"{where}[{index}]")
    elif isinstance(totals, float):
        assert totals == pytest.approx(recorded, rel=1e-12, abs=0), where
    else:
        assert totals == recorded, where
