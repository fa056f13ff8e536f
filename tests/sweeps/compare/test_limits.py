"""Goodput under every choice of limits: which choices there are, what is counted, and what is said."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from blis_jax.errors import ConfigError
from sweeps.compare.__main__ import main as compare
from sweeps.compare.limits import choices_of, ladders_of
from sweeps.limits import main

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = ("critical", "standard", "sheddable")
SMALL = [
    "iter00_baseline",
    "iter13_class_lead@found",
    "--seeds",
    "3",
    "--rng",
    "jax",
    "--num-requests",
    "200",
]


def test_no_class_has_a_shorter_limit_than_a_more_urgent_one() -> None:
    choices = choices_of({"critical": (50, 300), "standard": (100, 300), "sheddable": (200, 400)})
    assert choices == [
        (50, 100, 200), (50, 100, 400), (50, 300, 400), (300, 300, 400),
    ]  # fmt: skip


def test_limits_of_a_class_replace_the_usual_ones() -> None:
    ladders = ladders_of(["standard=400,300,400"], (*CLASSES, "batch"))
    assert ladders["standard"] == (300, 400) and ladders["batch"] == (1000, 2000)
    assert ladders["critical"] == (50, 100, 200)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("urgent=100", "is not CLASS=MS,… of a class of the workload; it has critical, standard, sheddable"),
        ("standard=soon", "needs numbers of ms above 0"),
        ("standard=0", "needs numbers of ms above 0"),
        ("critical", "needs numbers of ms above 0"),
    ],
)  # fmt: skip
def test_wrong_limits_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        ladders_of([text], CLASSES)


def test_limits_without_an_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 choices give no class a shorter limit"):
        choices_of({"critical": (500.0,), "standard": (100.0,)})
    with pytest.raises(ConfigError, match="allowed are 1 to 400"):
        choices_of({"critical": range(1, 30), "standard": range(1, 31)})


def test_one_arm_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["iter00_baseline"]) == 2
    assert "two or more arms are needed" in capsys.readouterr().err


def test_goodput_is_that_of_a_comparison_under_the_same_limits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limits = [
        f"--limits={name}={ms}"
        for name, ms in zip(CLASSES, ("60,90", "120", "250,400"), strict=True)
    ]
    assert main([*SMALL, *limits, "--output", str(tmp_path / "limits.json")]) == 0
    found = json.loads((tmp_path / "limits.json").read_text())
    said = capsys.readouterr().out
    assert len(found["differences"]) == 4 and (tmp_path / "limits.png").exists()
    assert "of 4; from" in said and "95 % for all 4 differences at once." in said
    one = next(row for row in found["differences"] if row["limits"]["critical"] == 90)
    targets = ",".join(f"{name}.ttft_ms={ms:g}" for name, ms in one["limits"].items())
    given = [*SMALL, "--targets", targets, "--metrics", "goodput_rps", "--inert", "records"]
    assert compare([*given, "--quiet", "--output", str(tmp_path / "compare.json")]) == 0
    arms = json.loads((tmp_path / "compare.json").read_text())["arms"]
    means = [arm["figures"]["all"]["goodput_rps"]["mean"] for arm in arms]
    assert [one["reference_mean"], one["mean"]] == pytest.approx(means, rel=1e-12)
