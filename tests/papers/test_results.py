"""The list of results: its pages, its commands, and the index that is made from it."""

from __future__ import annotations

import shlex
from importlib.util import find_spec

import pytest

from blis_jax.commands.door.catalogue import COMMANDS
from papers.__main__ import main
from papers.pages import ROOT, Result, results, with_abstract

RESULTS = ROOT / "docs" / "results"


def test_every_results_page_is_listed_once() -> None:
    pages = {path.name for path in RESULTS.glob("*.md")} - {"index.md", "ledger.md"}
    listed = [result.page for result in results()]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("result", results(), ids=lambda result: result.page)
def test_a_command_names_a_module(result: Result) -> None:
    first, second, *further = shlex.split(result.command)
    if first == "blis-jax":
        assert second in COMMANDS
    else:
        assert (first, second) == ("python", "-m") and find_spec(further[0]) is not None
    assert all(result)


def test_the_index_is_what_the_command_writes(tmp_path, capsys) -> None:
    index = (RESULTS / "index.md").read_text()
    copy = tmp_path / "index.md"
    copy.write_text(index.replace("Does it predict real servers?", "stale"))
    assert main(["--page", str(copy)]) == 0
    assert copy.read_text() == index
    printed = capsys.readouterr().out
    assert printed.startswith("Asked:   which results")
    assert all(result.command in printed for result in results())


@pytest.mark.parametrize("result", results(), ids=lambda result: result.page)
def test_a_page_begins_with_its_abstract(result: Result) -> None:
    text = (RESULTS / result.page).read_text()
    assert with_abstract(text, result.page) == text
    assert len(result.abstract().split()) <= 130


def test_the_command_writes_abstracts_beside_the_index(tmp_path, capsys) -> None:
    for name in ("index.md", "gpu.md", "calibration.md"):
        (tmp_path / name).write_text((RESULTS / name).read_text())
    gpu = tmp_path / "gpu.md"
    gpu.write_text(gpu.read_text().replace("> **So what**", "> **Stale**"))
    title, _, rest = (tmp_path / "calibration.md").read_text().partition("\n\n")
    bare = rest.partition("<!-- abstract:end -->\n\n")[2]
    (tmp_path / "calibration.md").write_text(f"{title}\n\n{bare}")
    assert main(["--page", str(tmp_path / "index.md")]) == 0
    for name in ("gpu.md", "calibration.md"):
        assert (tmp_path / name).read_text() == (RESULTS / name).read_text()
