"""The verdicts, the curves and the functions, for a terminal and as the page of results."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from blis_jax.files.strict_yaml import read_yaml
from blis_jax.metrics.metric import split_name
from blis_jax.reports import style
from blis_jax.reports.render import table_lines
from papers.pages import answer
from papers.router_search.contests import ALL, CURVES, FOUND, VERDICTS

FILE = "router-search.md"
PICTURE = "../figures/router_search/curve.png"
Rows = Sequence[Mapping[str, str]]
Tables = Mapping[str, Rows]
SHOWN = {"e2e_mean_ms": "E2E mean", "e2e_p95_ms": "E2E P95", "ttft_p99_ms": "TTFT P99"}


def printed(tables: Tables) -> list[str]:
    """Return what the command prints."""
    formulas = tables[FOUND]
    return answer(
        "whether a router that was bred without a language model beats the published ones, in every class",
        [f"{row['title'].replace('`', '')}: {_said(tables, row['contest'])}." for row in formulas],
        "40 seeds that no search saw; intervals of a contest's classes hold together, at 95 %.",
        f"{sum(int(row['programs']) for row in formulas)} programs, "
        f"{sum(int(row['dropped']) for row in formulas)} of them dropped after a few seeds.",
        "docs/how-to/evolve.md: a search for your own cluster.",
    )


def _said(tables: Tables, contest: str) -> str:
    rows = _of(tables[VERDICTS], contest)
    whole = next(row for row in rows if row["workload"] == ALL)
    classes = [row for row in rows if "[" in row["metric"]]
    count = {word: sum(row["verdict"] == word for row in classes) for word in ("better", "worse")}
    beats = whole["verdict"] == "better" and count["better"] == len(classes)
    word = "beaten in every class" if beats else "not beaten in every class"
    return (
        f"{word}; {_gain(whole)} overall, better in {count['better']} and worse in {count['worse']} of "
        f"{len(classes)} figures by class"
    )


def _gain(row: Mapping[str, str]) -> str:
    low, high = sorted((-float(row["low"]), -float(row["high"])))
    return f"{-float(row['change %']):+.2f} % [{low:+.2f}, {high:+.2f}]"


def _of(rows: Rows, contest: str) -> list[Mapping[str, str]]:
    return [row for row in rows if row["contest"] == contest]


# --- the page -------------------------------------------------------------------------------------


def page(tables: Tables) -> str:
    """Return the page of results."""
    words = read_yaml((files("papers.router_search") / "page.yaml").read_text("utf-8"), "page.yaml")
    parts = [words["intro"], "## Verdicts\n", *_verdicts(tables)]
    parts += ["## Programs against gain\n", words["curve"], f"![{_alt(tables)}]({PICTURE})\n"]
    parts += ["## By class\n", words["classes"], *_by_class(tables)]
    parts += ["## The functions\n", words["functions"], *_functions(tables)]
    return "\n".join(parts).rstrip() + "\n"


def _verdicts(tables: Tables) -> Iterator[str]:
    head = (
        "to beat",
        "workloads",
        "programs",
        "dropped early",
        "score of the search",
        "gain on 40 new seeds",
        "verdict",
    )
    lines = []
    for row in tables[FOUND]:
        whole = next(
            verdict
            for verdict in _of(tables[VERDICTS], row["contest"])
            if verdict["workload"] == ALL
        )
        said = _said(tables, row["contest"])
        verdict = f"{said.partition(';')[0]}: {said.partition('overall, ')[2]}"
        lines.append((
            row["title"], row["workloads"], row["programs"], row["dropped"], f"{float(row['score']):+.2f} %",
            _gain(whole), verdict,
        ))  # fmt: skip
    yield _table(head, lines)


def _alt(tables: Tables) -> str:
    ends = [
        f"{row['title'].replace('`', '')} {float(_of(tables[CURVES], row['contest'])[-1]['score']):+.1f} %"
        for row in tables[FOUND]
    ]
    said = "Score of the best formula by the number of programs that ran, against each of three routers"
    return f"{said}; at the end {', '.join(ends)}"


def _by_class(tables: Tables) -> Iterator[str]:
    head = ("to beat", "workload", "class", "figure", "change", "verdict")
    lines = []
    for formula in tables[FOUND]:
        for row in _of(tables[VERDICTS], formula["contest"]):
            if row["workload"] == ALL:
                continue
            name, slo_class = split_name(row["metric"])
            change = f"{row['change %']} % [{row['low']}, {row['high']}]"
            change = f"**{change}**" if row["verdict"] == "worse" else change
            lines.append(
                (
                    formula["title"],
                    row["workload"],
                    slo_class or "all",
                    SHOWN[name],
                    change,
                    row["verdict"],
                )
            )
    yield _table(head, lines)


def _functions(tables: Tables) -> Iterator[str]:
    for row in tables[FOUND]:
        yield f"### Against {row['title']}\n"
        for language in ("python", "go"):
            yield f"```{language}\n{_body(row[language])}\n```\n"


def _body(text: str) -> str:
    """Return the lines of a function's body, or those between the marks."""
    lines = text.split("\n")
    if "EVOLVE-BLOCK-START" in text:
        return textwrap.dedent("\n".join(lines[1:-2])).replace("\t", "    ")
    begin = next(at for at, line in enumerate(lines) if line.startswith("def "))
    return "\n".join([lines[begin], *lines[begin + 2 :]]).rstrip()


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join([*table_lines(head, rows), ""])


# --- the picture ----------------------------------------------------------------------------------


def draw(tables: Tables, path: Path) -> None:
    """Draw the curves of the searches into a PNG."""
    formulas = tables[FOUND]
    with style.figure(2.6, 1, len(formulas), sharey=True) as (figure, panels):
        for panel, row in zip(panels[0], formulas, strict=True):
            curve = _of(tables[CURVES], row["contest"])
            counts = [int(point["programs"]) for point in curve] + [int(row["programs"])]
            scores = [float(point["score"]) for point in curve]
            panel.step(counts, [*scores, scores[-1]], where="post", color=style.BLUE)
            panel.axhline(0, color=style.GREY, linewidth=0.8)
            panel.set_xlabel("programs")
            panel.set_title(row["title"].replace("`", "").removesuffix(" of the ledger"))
        panels[0][0].set_ylabel("score on the search's seeds, %")
        style.save(
            figure, path, "What a search without a language model gains",
            "Each panel: the router to beat; it08_opt and row 21 are strategies of this repository's ledger. Score of "
            "the best formula so far: the gain over that router, less what any class loses. "
            "Step up: a formula that is better on all seeds of the search. The verdict is on other seeds.",
        )  # fmt: skip
