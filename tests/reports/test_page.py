"""The page from made-up results: what it carries, says and refuses."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blis_jax.commands.options import OverwriteSwitch
from blis_jax.commands.options.outputs import OutputPaths, ReportOptions, outputs_of
from blis_jax.errors import ConfigError
from blis_jax.reports import answers, page
from blis_jax.reports.arm_pictures import timeline
from blis_jax.reports.differences import findings as findings_of
from blis_jax.reports.drawing import drawn
from blis_jax.reports.pictures import Axis, Series
from blis_jax.reports.study import (
    CURVE_LEVELS,
    Curve,
    MetricChange,
    SeedValues,
    Study,
)
from blis_jax.reports.study_pictures import pictures
from blis_jax.statistics.intervals import Estimate
from blis_jax.statistics.paired import Difference
from tests.support.browser import opened
from tests.support.findings_forms import where
from tests.support.report_page import embedded, marks
from tests.support.tiny_records import pressed_run, whole_run

HOSTILE = 'a</script><script>alert("1")</script>'


def estimate(mean: float, low: float, high: float) -> Estimate:
    return Estimate(mean, low, high, num_seeds=2)


def difference(
    metric: str = "ttft_p99_ms", slo_class: str = "critical", **changes: object
) -> MetricChange:
    """One change; intervals that hold for all together are those of one where they are not given."""
    usual: dict[str, object] = {
        "num_pairs": 2, "first_mean": 200.0, "second_mean": 100.0, "verdict": "better",
        "absolute": estimate(-100.0, -110.0, -90.0), "percent": estimate(-50.0, -55.0, -45.0),
        "p_value": math.nan, "p_adjusted": math.nan, **changes,
    }  # fmt: skip
    together = {
        "simultaneous": usual["absolute"],
        "in_family": usual["absolute"],
        "simultaneous_percent": usual["percent"],
    }
    change = Difference(**(together | usual))  # type: ignore[arg-type]
    return MetricChange(HOSTILE, "base", slo_class, metric, change)


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
        curves=(Curve.of("base", "critical", np.ones((1, len(CURVE_LEVELS)))),),
    )
    return dataclasses.replace(usual, **changes)  # type: ignore[arg-type]


def test_names_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    page.write_study(study(), path)
    text = path.read_text()
    assert HOSTILE not in text and "mixed & more" not in text
    (apart,) = marks(embedded(path), "differences on each", f"{HOSTILE[:32]}… − base", "critical")
    assert (apart["x"], apart["y"]) == ([3.0, 4.0], [-95.0, None])


def tooltips(text: str, figure: str) -> list[tuple[str, str]]:
    """The run and the lines of every mark of a picture, as a reader sees them."""
    drawn = text[text.index(f'<figure class="{figure}"') :].split("</figure>")[0]
    found = re.findall(
        r'<g(?: data-run="(.*?)")?[^>]*><title>(.*?)</title><(?:path|use|image)', drawn, re.S
    )
    return [(run, html.unescape(title)) for run, title in found]


def test_every_mark_says_what_it_is_with_value_and_interval() -> None:
    unsure = estimate(-50.0, -90.0, 150.0)
    one = study(differences=(difference(simultaneous_percent=unsure),))
    text = page.page(findings_of(one), "title", "command", {})
    assert HOSTILE not in text
    name = f"{HOSTILE[:32]}…"
    where = "\ncritical\nTTFT P99 by run (lower is better)\nchange: "
    told = ("", f"{name}{where}−50.0 [−55.0, −45.0] %")
    together = ("", f"{name}, interval that holds for all together{where}[−90.0, +150.0] %")
    assert tooltips(text, "changes") == [together, told, told]  # the second is the interval's bar
    (point,) = tooltips(text, "seeds")  # the other seed has no difference
    assert point == ("3", f"critical\n{name} − base\nseed: 3\ndifference (ms): −95.0")
    curve = [title for _, title in tooltips(text, "distributions")]
    assert curve[0] == "base\ncritical"
    assert "base\ncritical\ntime to first token (ms): 1.00 [1.00, 1.00]" in curve[-1]


def test_a_seed_is_marked_in_every_picture_and_an_image_tells_its_tiles(tmp_path: Path) -> None:
    """What a pointer does, in a browser."""
    shown = timeline(pressed_run(), "base", 0, np.linspace(0.0, 85.0, 500))
    other = difference(metric="ttft_mean_ms")
    values = [dataclasses.replace(one, metric="ttft_mean_ms") for one in study().values]
    page.write_study(
        study(differences=(difference(), other), values=(*study().values, *values), timelines=(shown,)),
        tmp_path / "page.html",
    )  # fmt: skip
    with opened(tmp_path / "page.html") as seen:
        send = "arguments[0].dispatchEvent(new MouseEvent(arguments[1], {bubbles: true, ...arguments[2]}))"
        points = seen.run("return [...document.querySelectorAll('[data-run=\"3\"]')]")
        assert len(points) == 2  # of two metrics
        is_marked = "return [...document.querySelectorAll('.apart .marked')].length"
        for event, target, num_marked in (
            *(("mouseover", points[0], 2), ("mouseover", seen.run("return document.body"), 0)),
            *(("click", points[1], 2), ("mouseover", seen.run("return document.body"), 2)),
            ("click", points[0], 0),
        ):
            seen.run(send, target, event, {})
            assert seen.run(is_marked) == num_marked
        image = seen.run("return document.querySelector('[data-mark]')")
        box = seen.run(
            "const b = arguments[0].getBoundingClientRect(); return [b.left + b.width / 2, b.top + 2]",
            image,
        )
        seen.run(send, image, "mousemove", dict(zip(("clientX", "clientY"), box, strict=True)))
        title = seen.run("return arguments[0].querySelector('title').textContent", image)
        (tiles,) = marks(
            embedded(tmp_path / "page.html"), "Instances over time", "Running batch, base"
        )
        at = np.searchsorted(tiles["x"], np.mean([tiles["x"][0], tiles["x"][-1]]), "right") - 1
        assert title.startswith("Running batch, base\n")
        assert float(title.splitlines()[-1].split()[0]) == pytest.approx(
            tiles["values"][-1][at], rel=0.01
        )
        assert not seen.console()


def test_the_page_begins_with_the_answer_and_one_picture(tmp_path: Path) -> None:
    page.write_study(study(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    body = text[text.index("<body>") :]
    parts = ("<h1>", '<dl id="answer">', '<figure class="changes"', "<table", "<figure", "<h2>")
    places = [body.index(part) for part in parts[:4]]
    assert places == sorted(places)
    assert embedded(tmp_path / "page.html")["answer"] == answers.answer(study()).to_json()


def test_a_page_is_the_same_when_it_is_made_again(tmp_path: Path) -> None:
    """A command that is stopped and gone on with writes the same bytes."""
    for name in ("one", "other"):
        page.write_study(study(), tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_the_verdict_says_the_change_and_whether_it_is_chance() -> None:
    def verdict(**changes: object) -> str:
        (sentence,) = answers.answer(study(differences=(difference(**changes),))).verdict
        return str(sentence)

    assert verdict() == "better: critical −50.0 %."
    unsure = estimate(-50.0, -90.0, 150.0)
    assert verdict(verdict="unclear", simultaneous_percent=unsure) == (
        "not told from chance: critical −50.0 %."
    )
    alone = estimate(-0.64, math.nan, math.nan)
    assert verdict(verdict="unclear", absolute=alone, num_pairs=10) == (
        "of one run, without a spread to judge by: critical −50.0 %."
    )
    assert verdict(verdict="same") == "the same: critical."
    nothing = estimate(math.nan, math.nan, math.nan)
    assert verdict(num_pairs=0, second_mean=math.nan, percent=nothing) == "no figure: critical."
    assert verdict(num_pairs=0) == "too few requests to judge: critical −50.0 %."
    of_zero = verdict(percent=nothing, absolute=estimate(3.0, 2.0, 4.0), verdict="worse")
    assert of_zero == "worse: critical +3.00 ms."


def test_the_verdict_says_what_a_better_class_pays() -> None:
    """Only figures that are surely worse, of classes that are called better; the largest first, the others counted."""
    paid = {"goodput_rps": 3.0, "e2e_p95_ms": 50.0, "ttft_mean_ms": 8.0, "pooled_e2e_p99_ms": 5.0}
    worse = [
        difference(metric=name, percent=estimate(at, 1.0, 9.0), verdict="worse")
        for name, at in paid.items()
    ]
    of_other_class = difference(slo_class="sheddable", metric="ttft_mean_ms", verdict="worse")
    (sentence,) = answers.answer(study(differences=(difference(), *worse, of_other_class))).verdict
    assert str(sentence) == (
        "better: critical −50.0 %; in return worse: TTFT mean of critical +8.00 %, "
        "E2E P99 pooled of critical +5.00 %, 1 more."
    )


def test_what_lies_beyond_the_axis_stops_at_its_end() -> None:
    open_ended = difference(percent=estimate(90_000.0, -10.0, math.inf))
    (picture, *_) = pictures(study(differences=(open_ended,)))
    with drawn(picture) as made:
        lines = [one for one in made.axes[0].collections if hasattr(one, "get_segments")]
        ends = [[point[0] for point in of_series.get_segments()[0]] for of_series in lines]
    assert ends == [[0.9, 256.0], [0.9, 256.0]]  # of all differences together, and alone
    series = next(mark for mark in picture.marks if isinstance(mark, Series) and mark.x != [-10.0])
    assert series.x == [90_000.0]  # the number itself is kept
    assert where(Axis(scale="percent"), series.x)[0] == 256.0


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


class _Options(ReportOptions, OverwriteSwitch):
    """What a command with a page has."""


def _outputs(folder: Path, **options: Any) -> OutputPaths:
    return outputs_of(_Options(**options), folder / "result.json")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"report": "page.pdf"}, "must end in .html"),
        ({"timeline": "trace.gz"}, "must end in .json"),
        ({"report": f"{__file__}/page.html"}, "is not a folder"),
    ],
)
def test_paths_are_checked_before_anything_runs(
    given: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _outputs(tmp_path, **given)


def test_a_page_is_not_replaced_unasked(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="--overwrite"):
        _outputs(tmp_path, report=str(path))
    assert _outputs(tmp_path, report=str(path), overwrite=True).report == path
    assert path.read_text() == "mine"
