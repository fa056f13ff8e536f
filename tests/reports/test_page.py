"""The page from made-up results: what it carries, says and refuses."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest

from blis_jax.commands.flags import report_flags
from blis_jax.errors import ConfigError
from blis_jax.reports import page, words
from blis_jax.reports.runs import timeline
from blis_jax.reports.study import (
    CURVE_LEVELS,
    MOST_CURVE_NUMBERS,
    Curves,
    SeedValues,
    ShownDifference,
    ShownInterval,
    Study,
    every_kth,
)
from tests.support.report_page import embedded, row, rows
from tests.support.tiny_records import pressed_run, whole_run

HOSTILE = 'a</script><script>alert("1")</script>'


def difference(**changes: object) -> ShownDifference:
    usual = ShownDifference(
        strategy=HOSTILE,
        reference="base",
        slo_class="critical",
        metric="ttft_p99_ms",
        unit="ms",
        better="lower",
        reference_mean=200.0,
        mean=100.0,
        absolute=ShownInterval(-100.0, -110.0, -90.0),
        percent=ShownInterval(-50.0, -55.0, -45.0),
        num_pairs=2,
        verdict="better",
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def study(**changes: object) -> Study:
    """Two strategies on two seeds."""
    usual = Study(
        command=f"python -m blis_jax.sweep --strategy {HOSTILE}",
        workload="mixed & more",
        strategies=("base", HOSTILE),
        descriptions={},
        classes=("all", "critical"),
        seeds=(3, 4),
        differences=(difference(), difference(slo_class="all")),
        intervals="made up",
        values=tuple(
            SeedValues(name, "critical", "ttft_p99_ms", values)
            for name, values in (("base", (190.0, 210.0)), (HOSTILE, (95.0, None)))
        ),
        levels=CURVE_LEVELS,
        curves=(Curves("base", "critical", {0: [1.0] * len(CURVE_LEVELS)}),),
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    page.write(study(), path)
    text = path.read_text()
    assert HOSTILE not in text and "mixed & more" not in text
    content = embedded(path)
    assert row(content["tables"]["values"], strategy=HOSTILE, at=0)["ttft_p99_ms"] == 95.0
    assert row(content["tables"]["values"], strategy=HOSTILE, at=1)["ttft_p99_ms"] is None


def test_headlines_say_the_change_and_whether_it_is_chance() -> None:
    ((_, sentences),) = words.headlines(study())
    assert sentences == [
        "Critical requests: the 99th percentile of the time to first token falls from 200.0 to "
        "100.0 ms (−50.0 % [−55.0, −45.0]), which is better."
    ]
    unsure = difference(verdict="unclear", joint_percent=ShownInterval(-50.0, -90.0, 150.0))
    ((_, (sentence,)),) = words.headlines(study(differences=(unsure,)))
    assert sentence.endswith(
        "(−50.0 % [−90.0, +150.0]), but these runs cannot tell this from chance."
    )
    nothing = difference(num_pairs=0, mean=None, percent=ShownInterval(None, None, None))
    ((_, (sentence,)),) = words.headlines(study(differences=(nothing,)))
    assert "cannot be compared" in sentence


def test_what_lies_beyond_the_axis_stops_at_its_end() -> None:
    open_ended = difference(percent=ShownInterval(9000.0, -10.0, None))
    (found,) = rows(page.tables(study(differences=(open_ended,)))["differences"])
    assert (found["ratio"], found["ratio_low"], found["ratio_high"]) == (32.0, 0.9, 32.0)
    assert found["percent"] == 9000.0  # the number itself is kept


def test_many_seeds_are_thinned_and_few_are_not() -> None:
    assert every_kth(256, 3 * 4 * len(CURVE_LEVELS)) == 1
    step = every_kth(10_000, 3 * 4 * len(CURVE_LEVELS))
    assert 10_000 / step * 3 * 4 * len(CURVE_LEVELS) <= MOST_CURVE_NUMBERS


def test_a_timeline_is_the_mean_over_each_span() -> None:
    edges = np.array([0.0, 20.0, 40.0, 85.0])
    shown = timeline(pressed_run(), "pressed", 0, edges)
    # steps of 10 µs from 0, 10 (two), 30 (two); nothing up to 50; 15 µs, then two of 10 µs from 65
    assert shown.running[0] == pytest.approx([(10 + 2 * 10) / 20, (2 * 10 + 10) / 20, 45 / 45])
    assert shown.waiting[0] == pytest.approx([0, 10 / 20, 10 / 45])
    percent = np.array([10 * 1 + 10 * 3, 10 * 3 + 10 * 2, 10 * 2 + 15 * 1 + 20 * 2]) / 3 * 100
    assert shown.kv_percent[0] == pytest.approx(percent / [20, 20, 45])
    assert shown.num_steps == pressed_run().instances.step_count[0]


def test_a_step_that_begins_before_the_last_has_ended_is_not_counted_twice() -> None:
    shown = timeline(whole_run(), "whole", 0, np.array([0.0, 60.0, 80.0]))
    assert shown.running[0] == pytest.approx([55 / 60, 1.0])


def test_without_the_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ConfigError, match=r"pip install 'blis-jax\[report\]'"):
        report_flags.paths_of({"report": str(tmp_path / "page.html")})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"report": "page.pdf"}, "must end in .html"),
        ({"timeline": "trace.gz"}, "must end in .json"),
        ({"report": f"{__file__}/page.html"}, "is not a folder"),
    ],
)
def test_paths_are_checked_before_anything_runs(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        report_flags.paths_of(given)


def test_a_page_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="--overwrite"):
        report_flags.paths_of({"report": str(path)})
    assert report_flags.paths_of({"report": str(path), "resume": True}).report == path
    assert path.read_text() == "mine"
