"""Where the recorded results of the reference simulator lie, if they are here at all."""

from pathlib import Path

REPO_ROOT = Path(__file__).resolve().parents[2]
SHARED_DIR = REPO_ROOT.parent / "shared"


REVISIONS = ("routing", "scheduling")  # folders of the revision that is reproduced


def find_golden_dir() -> Path | None:
    """The full golden set beside the checkout, else the committed copy, else None."""
    candidates = (SHARED_DIR / "golden", REPO_ROOT / "tests" / "data" / "golden")
    return next((path for path in candidates if path.is_dir()), None)
