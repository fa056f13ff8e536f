"""The README's way from a clone to a report of one's own policy on one's own trace: five commands at most."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from blis_jax.__main__ import main
from tests.support.recorded.reference_data import REPO_ROOT

SECTION = "## The same on your own trace"


@pytest.mark.lenient_promotion  # as for a user, who adds counts to weights
def test_a_newcomer_gets_a_report_in_five_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (REPO_ROOT / "README.md").read_text(encoding="utf-8")
    (policy,) = re.findall(r"```python\n(# mine\.py\n.*?)```", readme, re.DOTALL)
    commands = readme.split(SECTION)[1].split("```")[1].replace("\\\n", " ").strip().splitlines()
    assert len(commands) <= 5
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(policy)
    shutil.copy(REPO_ROOT / "examples" / "traces" / "bursts.csv", "trace.csv")
    ours = [shlex.split(line) for line in commands if line.startswith("blis-jax")]
    assert len(ours) == 2
    for words in ours:
        assert main(words[1:]) == 0
    assert "mine" in capsys.readouterr().out
    page = Path("report.html").read_text(encoding="utf-8")
    assert "How mine compares with vllm on the trace trace.csv" in page
