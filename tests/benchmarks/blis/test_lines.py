"""Random command lines: the same each time, known to all four commands, with every option of BLIS's run and replay."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import yaml

from benchmarks.blis import files, lines
from benchmarks.blis.workloads import Draw
from blis_jax.cluster.config import AUGUST
from blis_jax.cluster.offload_tiers import PHYSICS, RAMP
from blis_jax.commands.door.catalogue import COMMANDS
from blis_jax.commands.parser import declared
from blis_jax.commands.run.flags import make_parser
from blis_jax.workload.spec import load_spec
from tests.commands.run.test_blis_options import REPLAY, RUN


@pytest.mark.filterwarnings("ignore::blis_jax.errors.ConfigWarning")  # of files of version 1
def test_a_line_is_the_same_each_time_and_known(tmp_path: Path) -> None:
    commands = set()
    for number in range(0, 90 * lines.LINES, lines.LINES + 1):
        drawn = lines.line(number, tmp_path)
        texts = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
        assert drawn == lines.line(number, tmp_path)
        assert texts == {path: path.read_text() for path in texts}
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
    assert {"run", "replay"} < commands


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
    assert {*RUN.split(), *REPLAY} - {"log"} <= drawn


def test_everything_that_convert_and_compose_take_is_drawn(tmp_path: Path) -> None:
    drawn = {}
    for number in range(60):
        command, words = files.converted(Draw(number, 1), tmp_path / str(number))
        declared(COMMANDS[command[0]].main()).parse_args([*command[1:], *words])
        drawn.setdefault(command, set()).update(word for word in words if word.startswith("--"))
    assert drawn == {
        ("compose",): {"--from"},
        ("convert", "inference-perf"): {"--spec"},
        ("convert", "preset"): {"--name", "--rate"},
        ("convert", "servegen"): {"--path", *(f"--{name}" for name in files.SERVEGEN)},
    }


def test_a_folder_of_servegen_data_has_two_files_for_each_client(tmp_path: Path) -> None:
    texts = set()
    for seed in range(30):
        files.servegen(random.Random(seed), tmp_path / str(seed))
        names = {path.name for path in (tmp_path / str(seed)).iterdir()}
        clients = {name.split("-")[1] for name in names}
        parts = ("trace.csv", "dataset.json")
        assert names == {f"chunk-{client}-{part}" for client in clients for part in parts}
        texts.add((tmp_path / str(seed) / "chunk-0-dataset.json").read_text())
    assert len(texts) == 30
    assert any("reason_ratio" in text for text in texts)


def test_classes_of_storage_are_those_of_the_file_of_defaults(tmp_path: Path) -> None:
    named = set()
    for number in range(20):
        path = tmp_path / f"{number}.yaml"
        words, classes = files.defaults(Draw(number, 1), "qwen/qwen3-14b", path)
        assert str(path) in words and f"{files.REPOSITORY}model_configs/qwen3-14b" in words
        devices = yaml.safe_load(path.read_text())["kv_offload_devices"]
        assert classes == (*devices,)
        named |= {name for device in devices.values() for name in device}
    assert named == {*PHYSICS, *RAMP, *(f"buffered_{name}" for name in (*PHYSICS, *RAMP))}
