"""The page: one file that opens offline, with the library, the data and the words in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from blis_jax.files.atomic_write import replacing
from blis_jax.reports import words
from blis_jax.reports.charts import charts
from blis_jax.reports.data import metric_label, tables
from blis_jax.reports.library import LICENCE, javascript, library_versions
from blis_jax.reports.study import Study

LONGEST_SHORT = 140  # characters of a line of the provenance that is not folded away


def write(study: Study, path: Path) -> None:
    """Writes the page, whole or not at all."""
    with replacing(path) as written:
        written.write_text(html(study), encoding="utf-8")


def html(study: Study) -> str:
    """The page as a text."""
    drawn = charts(study)
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    colours = study.colours
    headlines = words.headlines(study)
    compared = list(dict.fromkeys(one.strategy for one in study.differences))
    reference_of = {one.strategy: one.reference for one in reversed(study.differences)}
    short, long = _provenance(study)
    num_curve_seeds = max((len(one.by_seed) for one in study.curves), default=0)
    return environment.from_string(_file("page.html")).render(
        study=study,
        charts=drawn,
        title=study.title or title(study),
        lead=study.lead or words.what_was_compared(study),
        headlines=[
            (name, colours.get(name, colours[study.strategies[0]]), of) for name, of in headlines
        ],
        reference_of=reference_of,
        num_more=len(compared) - len(headlines),
        has_joint=any(one.joint_percent is not None for one in study.differences),
        every=max(1, len(study.seeds) // num_curve_seeds) if num_curve_seeds else 1,
        num_curve_seeds=num_curve_seeds,
        span_ms=_span_ms(study),
        num_timelines_left_out=len(study.timelines) and len(study.timelines) - _shown(study),
        metric_label=metric_label,
        number=words.number,
        interval=words.interval,
        short=short,
        long=long,
        licence=LICENCE,
        css=_file("page.css"),
        library=javascript(),
        script=_file("page.js"),
        data=_embedded(content(study, drawn)),
    )


def title(study: Study) -> str:
    """Of the page."""
    if len(study.strategies) == 1:
        return f"How {study.strategies[0]} does on the workload {study.workload}"
    others = list(study.strategies[1:])
    shown = words.joined(others) if len(others) <= 3 else f"{len(others)} strategies"
    verb = "compares" if len(others) == 1 else "compare"
    return f"How {shown} {verb} with {study.strategies[0]} on the workload {study.workload}"


def content(study: Study, drawn: Mapping[str, Any]) -> dict[str, Any]:
    """The data that the page carries."""
    return {
        "seeds": list(study.seeds),
        "runs": study.runs.many,
        "places": list(study.places),
        "metrics": list(dict.fromkeys(one.metric for one in study.values)),
        "levels": list(study.levels),
        "tables": tables(study),
        "charts": dict(drawn),
    }


def _embedded(document: Mapping[str, Any]) -> str:
    """JSON inside a script element: no `<` that could end it."""
    text = json.dumps(document, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _file(name: str) -> str:
    return (resources.files("blis_jax") / "reports" / name).read_text(encoding="utf-8")


def _provenance(study: Study) -> tuple[dict[str, str], dict[str, str]]:
    """Lines that are shown, and texts that are folded away."""
    short: dict[str, str] = {}
    long: dict[str, str] = {}
    drawn_with = ", ".join(f"{name} {version}" for name, version in library_versions().items())
    entries = {**study.provenance, "charts": f"{drawn_with} (BSD-3-Clause)"}
    for name, value in entries.items():
        text = value if isinstance(value, str) else json.dumps(value, indent=1, ensure_ascii=False)
        is_short = len(text) <= LONGEST_SHORT and "\n" not in text
        (short if is_short else long)[name] = text
    return short, long


def _span_ms(study: Study) -> float:
    edges = study.timelines[0].edges_s if study.timelines else (0.0, 0.0)
    return 1000 * (edges[1] - edges[0])


def _shown(study: Study) -> int:
    from blis_jax.reports.charts import MOST_TIMELINES

    return min(len(study.timelines), MOST_TIMELINES)
