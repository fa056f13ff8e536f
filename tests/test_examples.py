"""Every example runs and prints what it promises."""

import importlib
import runpy
import sys

import pytest

from tests.support.recorded.reference_data import REPO_ROOT

FOLDER = REPO_ROOT / "examples"
PROMISES = {
    "mooncake": ["round-robin: mean TTFT", "prefix-affinity: mean TTFT"],
    "azure": ['"completed_requests": 8', "sheddable:"],
    "burstgpt": ["6 requests in 3 sessions", "1 failed requests (no response tokens) left out"],
    "servegen": ["seed 1: 100 requests in", "from 2 clients"],
    "trace_v2": ['"completed_requests": 6'],
    "inference_perf": [
        "blis-2026-02: 6 clients, classes batch, 240 requests",
        "blis-2026-08: 12 clients, classes standard, 240 requests",
        "240 rows read back, prompts begin with 2 shared contents",
    ],
    "blis_csv": ["blocks of 16:"],
    "vidur": ["arrival_us,input_tokens,output_tokens", "275000,64,90"],
    "plain": ["format: plain", "classes: critical 2, standard 1, batch 1"],
}


def test_every_example_is_tested():
    assert {path.stem for path in FOLDER.glob("*.py")} == PROMISES.keys()


@pytest.mark.lenient_promotion  # the engine adds flags to counts
@pytest.mark.parametrize("name", PROMISES)
def test_example(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(tmp_path / "run.csv")])
    monkeypatch.chdir(tmp_path)
    try:
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
    except SystemExit as end:
        assert end.code == 0
    printed = capsys.readouterr().out
    for words in PROMISES[name]:
        assert words in printed
    written = {path.name for path in tmp_path.iterdir()}
    is_writing = name in ("trace_v2", "inference_perf")
    assert written == ({"run.csv", "run.yaml"} if is_writing else set())


def test_drafts_lose_their_gain_with_load(monkeypatch):
    """`drafts/break_even.py`, of fewer runs: the load from which it finds a loss is behind one with a gain."""
    monkeypatch.syspath_prepend(str(FOLDER / "drafts"))
    script = importlib.import_module("break_even")
    few = {"RATES": (5, 60), "ACCEPTANCES": (0.4,), "DRAFTS": (4,), "SECONDS": 4, "SEEDS": range(2)}
    for name, value in few.items():
        monkeypatch.setattr(script, name, value)
    (gain,) = script.gains().values()
    assert (gain[0] > 0).all()
    assert (gain[1] < 0).all()
    assert script.table({(0.4, 4): gain}).count("\n") == 2
    assert 5 < float(script.break_even(gain.mean(axis=1))) < 60
    (panels,) = script.picture({(0.4, 4): gain}).panels
    assert [panel.title for panel in panels] == ["acceptance 0.4"]
