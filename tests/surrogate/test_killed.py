"""Training that is killed (SIGKILL) at chosen places goes on to the same surrogate and leaves nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from surrogate import train, training
from surrogate.predictor import Surrogate
from tests.files.test_leftovers import ENVIRONMENT, names
from tests.support.killed import ROOT

pytestmark = pytest.mark.lenient_promotion

FIT = [
    "--members",
    "2",
    "--width",
    "8",
    "--depth",
    "1",
    "--steps",
    "150",
    "--batch",
    "64",
    "--quiet",
]
KILLED = """
import sys
from pathlib import Path
from surrogate import train
from surrogate import training
from tests.support.killed import kill_when

moment, store, out, *words = sys.argv[1:]
state, removed = Path(out + ".state"), []

def half_written(event, path):
    return event == "os.rename" and path.endswith("/new/made.state/arrays") or (
        state.exists() and event == "open" and "/new/made.state/" in path)

def exchanged(event, path):
    return event == "os.rename" and path.endswith("/new/made.state") and not state.exists()

def is_second(event, path):
    return exchanged(event, path) and any(state.parent.glob("*/aside"))

def discarded(event, path):
    if event == "os.remove" and Path(out).exists() and not state.with_name("lock").exists():
        removed.append(path)
    return len(removed) > 8

training.SECONDS_BETWEEN_STATES = 0.0
kill_when({"half written": half_written, "exchanged": is_second, "discarded": discarded}[moment])
sys.exit(train.main([store, "--out", out, *words]))
"""


@pytest.fixture(scope="module")
def whole(store: Path) -> Path:
    path = store.with_name("whole.surrogate")
    assert train.main([str(store), *FIT, "--out", str(path)]) == 0
    return path


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["half written", "exchanged", "discarded"])
def test_killed_training_goes_on_and_leaves_nothing(
    store: Path, whole: Path, tmp_path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "SECONDS_BETWEEN_STATES", 0.0)
    out = tmp_path / "made"
    words = [sys.executable, "-c", KILLED, moment, str(store), str(out), *FIT]
    assert subprocess.run(words, env=ENVIRONMENT, cwd=ROOT).returncode == -signal.SIGKILL
    left = names(tmp_path)
    assert any(name.startswith(".made.state.") and name.endswith(".tmp") for name in left), left
    assert train.main([str(store), *FIT, "--out", str(out), "--resume"]) == 0
    assert names(tmp_path) == ["made"]
    points = np.array([[1.0, 5.0, 0.0]])
    assert Surrogate.load(whole).predict(points).identical(Surrogate.load(out).predict(points))
