"""The list of results: its pages, its commands, and the index that is made from it."""

from __future__ import annotations

import shlex
from importlib.util import find_spec

import pytest

from blis_jax.commands.door.catalogue import COMMANDS
from papers.__main__ import Result, main, results
from papers.pages import ROOT

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
