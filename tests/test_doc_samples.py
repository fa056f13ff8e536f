"""Commands on the pages print today what the page shows of them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from blis_jax.__main__ import main
from tests.support.recorded.reference_data import REPO_ROOT

PAGES = (
    "docs/traces.md",
    "docs/how-to/capacity.md",
    "docs/how-to/first-questions.md",
    "docs/how-to/curve.md",
    "docs/tutorials/first-steps.md",
)
COMMAND = re.compile(r"^(?:blis-jax|python -m sweeps\.) ?(.+)$")
GAP = "…"


def samples(page: str) -> list[tuple[list[str], list[str]]]:
    """Return the commands of a page with the lines that it shows of what they print."""
    text = (REPO_ROOT / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    blocks = [(kind, block.splitlines()) for kind, block in found]
    return [
        (one, shown)
        for (_, one), (kind, shown) in pairwise(blocks)
        if kind != "python" and _is_shell(one) and not _is_shell(shown)
    ]


def _without_numbers(line: str) -> str:
    """A search for a fit ends a little elsewhere on another machine."""
    return " ".join(re.sub(r"[-+]?[\d.]+", "#", line).split())


def _is_shell(lines: list[str]) -> bool:
    return COMMAND.match(lines[-1]) is not None


SAMPLES = [
    pytest.param(*sample, id=f"{Path(page).stem}-{at}")
    for page in PAGES
    for at, sample in enumerate(samples(page))
]


def test_pages_have_samples() -> None:
    assert all(samples(page) for page in PAGES)


@pytest.mark.slow
@pytest.mark.parametrize(("commands", "shown"), SAMPLES)
def test_a_command_prints_what_its_page_shows(
    commands: list[str],
    shown: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(REPO_ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    *before, last = commands
    for line in before:
        subprocess.run(["bash", "-c", line], check=True)
    found = COMMAND.match(last)
    assert found is not None and main(shlex.split(found[1])) == 0
    printed = capsys.readouterr().out
    written = sorted(tmp_path.rglob("translation-*.md"))  # of promote, which prints paths
    printed += "".join(path.read_text(encoding="utf-8") for path in written)
    seen = _without_numbers if found[1].startswith("calibrate") else str.rstrip
    lines = iter([seen(line) for line in printed.splitlines()])
    wanted = [line for line in shown if line.strip() not in ("", GAP)]
    missing = [line for line in wanted if seen(line) not in lines]  # in this order
    assert missing == [], printed
