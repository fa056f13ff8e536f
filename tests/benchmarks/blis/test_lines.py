"""Random command lines: the same each time, known to all four commands, with every option of BLIS's run and replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.blis import lines
from blis_jax.cluster.config import AUGUST
from blis_jax.commands.door.catalogue import COMMANDS
from blis_jax.commands.parser import declared
from blis_jax.commands.run.flags import make_parser
from blis_jax.workload.spec import load_spec
from tests.commands.run.test_blis_options import REPLAY, RUN

OF_THE_MACHINE = {"defaults-filepath", "hardware-config", "log", "model-config-folder"}


@pytest.mark.filterwarnings("ignore::blis_jax.errors.ConfigWarning")  # of files of version 1
def test_a_line_is_the_same_each_time_and_known(tmp_path: Path) -> None:
    commands = set()
    for number in range(0, 90 * lines.LINES, lines.LINES + 1):
        drawn = lines.line(number, tmp_path)
        texts = {path: path.read_text() for path in tmp_path.iterdir()}
        assert drawn == lines.line(number, tmp_path)
        assert texts == {path: path.read_text() for path in tmp_path.iterdir()}
        commands.add(drawn.command[0])
        if drawn.command == ("run",):
            make_parser().given(["--profile", "blis-2026-08", *drawn.words])
        else:
            declared(COMMANDS[drawn.command[0]].main()).parse_args(
                [*drawn.command[1:], *drawn.words]
            )
        if drawn.first:
            make_parser().given(["--profile", "blis-2026-08", *drawn.first])
        for at, word in enumerate([*drawn.words, *drawn.first]):
            if word == "--workload-spec":
                load_spec(Path([*drawn.words, *drawn.first][at + 1]), AUGUST)
    assert commands == {"run", "replay", "compose", "convert"}


def test_the_lines_of_a_group_differ_in_numbers_alone(tmp_path: Path) -> None:
    groups = [
        [lines.line(lines.LINES * group + at, tmp_path) for at in range(4)] for group in range(12)
    ]
    for group in groups:
        names = {tuple(word for word in line.words if word.startswith("--")) for line in group}
        assert len(names) == 1
        assert len({tuple(line.words) for line in group}) == 4


def test_every_option_of_blis_is_drawn(tmp_path: Path) -> None:
    drawn: set[str] = set()
    for group in range(400):
        line = lines.line(lines.LINES * group, tmp_path)
        drawn |= {word[2:] for word in (*line.words, *line.first) if word.startswith("--")}
    assert {*RUN.split(), *REPLAY} - OF_THE_MACHINE <= drawn
