"""Tables of the benchmark commands between the markers of a page."""

from __future__ import annotations

from pathlib import Path

import pytest

from papers.pages import hand_over, write_between_markers


def test_the_page_keeps_what_is_around_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("before <!-- gpu:begin -->\nold\n<!-- gpu:end --> after")
    assert hand_over("new", page, "gpu") == 0
    assert page.read_text() == "before <!-- gpu:begin -->\nnew\n<!-- gpu:end --> after"
    assert capsys.readouterr().out == "new\n"


def test_a_page_without_the_markers_is_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    page.write_text("<!-- gpu:begin --> no end")
    with pytest.raises(SystemExit, match="put both where the table goes"):
        write_between_markers(page, "gpu", "new")
    assert page.read_text() == "<!-- gpu:begin --> no end"
