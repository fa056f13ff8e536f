"""`blis-jax doctor`: what it says of this machine, and of others that are set up otherwise."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from blis_jax.commands import lacking
from blis_jax.commands.cli import run_command
from blis_jax.commands.door import dispatch
from blis_jax.commands.door.dispatch import main

ROOT = Path(__file__).parents[3]


def test_it_says_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("JAX_ENABLE_COMPILATION_CACHE", raising=False)
    (tmp_path / "program").write_bytes(bytes(3_000_000))
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    assert f"compiled programs: {tmp_path}, 1 file, 3 MB" in shown
    for words in (
        "profile blis-2026-02/scheduling",
        "cores",
        "JAX ",
        " device",
        "XLA's option for long loops",
    ):
        assert words in shown


def test_the_groups_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    groups = set(project["optional-dependencies"]) - {"dev"}
    assert {extra.name for extra in lacking.EXTRAS} == groups - {"docs"}
    words = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition("installs optional groups:")[2]
    )
    assert set(re.findall(r"`([a-z]+)`", words.partition("\n\n")[0])) == groups


def test_what_is_missing_is_said_with_the_command_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = lacking.Extra("export", ("no_such_module",), "outputs that end in .nc")
    monkeypatch.setattr(dispatch, "EXTRAS", (group,))
    monkeypatch.setattr(dispatch, "missing_packages", lambda: ["pyyaml"])
    assert main(["doctor"]) == dispatch.EXIT_INCOMPLETE
    printed = capsys.readouterr()
    assert (
        "for outputs that end in .nc: missing (no_such_module): pip install 'blis-jax[export]'"
        in printed.out
    )
    assert printed.err.startswith("blis-jax doctor: pyyaml is not installed, and every command")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--xla_backend_extra_options=xla_cpu_small_while_loop_byte_threshold=9",
            "XLA's option for long loops: set",
        ),
        ("", "about ten times slower; XLA_FLAGS is empty, which keeps it out: unset XLA_FLAGS"),
        ("--xla_backend_extra_options=a=1", "your --xla_backend_extra_options lacks it: add xla_"),
    ],
)
def test_xla_options(flags: str, expected: str) -> None:
    assert expected in dispatch.flags_line(flags)


def test_a_cache_that_is_off_or_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    assert dispatch.cache_line().endswith("not kept, as JAX_ENABLE_COMPILATION_CACHE says")
    monkeypatch.setattr(dispatch.os, "access", lambda *_: False)
    assert "cannot be written; set JAX_COMPILATION_CACHE_DIR" in dispatch.cache_line()


def test_a_command_that_needs_a_missing_group_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def command(_: object) -> int:
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow.parquet")

    assert run_command("blis_jax.x", command, []) == 2
    assert capsys.readouterr().err == (
        "blis_jax.x: error: pyarrow is not installed; pip install 'blis-jax[parquet]'\n"
    )

    def broken(_: object) -> int:
        raise ModuleNotFoundError("No module named 'mine'", name="mine")

    with pytest.raises(ModuleNotFoundError):
        run_command("blis_jax.x", broken, [])
