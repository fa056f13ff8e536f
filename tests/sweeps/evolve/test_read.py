"""`blis-jax evolve read`: the file, the five lines, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.commands.door.dispatch import main
from tests.support.evolve.programs import whole

pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")


def test_it_writes_the_policy_and_says_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program, output = tmp_path / "routing.go", tmp_path / "mine.py"
    program.write_text(whole("scorers"))
    asked = ["evolve", "read", str(program), "--output", str(output)]
    assert main(asked) == 0
    said = capsys.readouterr().out
    assert [line.split(":")[0] for line in said.split("\n") if line[:1].strip()] == [
        "Asked", "Verdict", "Sure", "Price", "Next",
    ]  # fmt: skip
    assert (
        "request.input_len" in said and "--routing-scorers prefix-affinity:1,load-balance:1" in said
    )
    assert "def route(params, state, context):" in output.read_text()
    assert main(asked) == 2
    assert "is there already; --overwrite replaces it" in capsys.readouterr().err
    assert main([*asked, "--overwrite"]) == 0


def test_a_program_that_is_refused_leaves_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "routing.go"
    program.write_text("bestIdx := ws.count\n")
    assert main(["evolve", "read", str(program)]) == 2
    assert "routing.go:1: a struct field" in capsys.readouterr().err
    assert not program.with_suffix(".py").exists()
    assert main(["evolve", "read"]) == 2
    assert main(["evolve", "read", str(program), "--output", "mine.txt"]) == 2
