"""The GPU form's table, without a compiler for GPUs."""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.__main__ import LAUNCH_S, SCAN_STEPS, Compiled
from benchmarks.gpu.hlo_counts import Counts


def compiled(inner: int = 0) -> Compiled:
    counts = Counts(
        Counter({"elementwise": 3, "reduction": 1}), [4096] * 3 + [4096 * 4096], 0, inner
    )
    return Compiled("made", 4096, counts, 4096 * 2000, 3 * 10**9)


def test_a_kernel_takes_its_launch_or_its_bytes() -> None:
    few, many = compiled().step_s(256), compiled().step_s(2**20)
    assert few == pytest.approx(4 * LAUNCH_S)
    assert many == pytest.approx(3 * LAUNCH_S + 4096 * 2**20 / gpu.BANDWIDTH)
    assert compiled().runs_per_s(256) == pytest.approx(256 / (SCAN_STEPS * 4 * LAUNCH_S))


def test_the_table_has_a_line_of_each_and_projects_what_has_no_inner_loops() -> None:
    text = gpu.table([compiled(), compiled(inner=7)])
    row = "| made | 4 | 3 elementwise, 1 reduction | {} | 0 | 4.1 | 2.0 | 3.00 |"
    assert row.format(0) in text and row.format(7) in text
    assert text.count("| made |") == 3


def test_without_a_compiler_for_gpus_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert gpu.main([]) == 2
    error = capsys.readouterr().err
    assert 'pip install "jax[cuda13]"' in error and len(error.splitlines()) == 1


def test_a_part_of_the_table_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--write", "--mechanism", "baseline"]) == 2
    assert gpu.main(["--lanes", "0"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and "--write is for all mechanisms" in said[0]
    assert "--lanes: got 0, allowed is 1 or more" in said[1]
