"""`--decide` and `--precision`: seeds are added until a rule is content, and the result says how many and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax.reports.render import show
from sweeps.compare.__main__ import main
from sweeps.compare.study import findings_of
from tests.sweeps.busy import result

QUICK = (
    "--num-requests",
    "60",
    "--rng",
    "jax",
    "--figure",
    "none",
    "--inert",
    "mechanisms",
    "--quiet",
)
METRIC = "ttft_mean_ms[critical]"


def compare(folder: Path, *words: str) -> int:
    return main([*words, *QUICK, "--output", str(folder / "out.json")])


def test_seeds_are_added_until_the_verdict_is_safe(
    arms: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"base={arms[0]}", f"priority={arms[1]}", "--metrics", "ttft_mean_ms"]
    asked = ["--deciding", f"{METRIC},ttft_mean_ms", "--most-seeds", "45"]
    assert compare(tmp_path, *words, "--decide", *asked) == 0
    document = result(tmp_path)
    stopping = document["stopping"]
    used = stopping["num_seeds"]
    assert (
        stopping["looks"] == [20, 30, 45][: len(stopping["looks"])]
        and stopping["looks"][-1] == used
    )
    assert document["seeds"] == list(range(used))
    assert (stopping["end"] == "decided") == all(
        one["verdict"] != "unclear" for one in stopping["differences"]
    )
    assert document["inference"]["is_anytime"]
    entry = next(one for one in document["comparisons"] if one["class"] == "critical")
    assert entry["num_pairs"] == used and entry["simultaneous"]["method"] == "anytime-valid t"
    assert entry["verdict"] == "better"
    show(findings_of(document))
    said = " ".join(capsys.readouterr().out.split())
    assert f"{used} seeds: seeds were added until every verdict was safe" in said
    before = (tmp_path / "out.json").read_bytes()
    assert compare(tmp_path, *words, "--decide", *asked, "--resume") == 0  # nothing is run again
    assert (tmp_path / "out.json").read_bytes() == before


def test_a_precision_keeps_students_intervals(arms: tuple[str, str], tmp_path: Path) -> None:
    words = [*arms, "--metrics", "ttft_mean_ms", "--deciding", "ttft_mean_ms"]
    assert compare(tmp_path, *words, "--precision", "20%", "--most-seeds", "40") == 0
    document = result(tmp_path)
    (found,) = document["stopping"]["differences"]
    half = (found["simultaneous"]["high"] - found["simultaneous"]["low"]) / 2
    assert half <= 0.2 * found["reference_mean"] and document["stopping"]["end"] == "precise"
    assert not document["inference"]["is_anytime"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--most-seeds", "40"), "--most-seeds has no meaning without --precision or --decide"),
        (("--precision", "much"), "--precision: 'much' is no number of %"),
        (("--precision", "90%"), "allowed is 0.01% to 50%"),
        (("--decide", "--seeds", "1,2,3"), "give the number of the first stage"),
        (
            ("--decide", "--seeds", "5"),
            "the first stage of --precision and --decide has 20 to 640 seeds",
        ),
        (("--decide", "--most-seeds", "5"), "--most-seeds: got 5, allowed is 20 to 100000"),
        (("--decide", "--deciding", "speed"), "--deciding: metric 'speed' is unknown"),
        (("--decide", "--deciding", "ttft_p99_ms[batch]"), "no request is of class batch"),
        (("--decide", "--trace", "t.csv"), "the requests are those of a trace"),
    ],
)
def test_what_means_nothing_is_refused(
    arms: tuple[str, str],
    tmp_path: Path,
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert compare(tmp_path, *arms, *words) == 2
    assert said in " ".join(capsys.readouterr().err.split())
