"""The pages: their length, their links, and the tables that are made from declarations."""

from __future__ import annotations

import importlib.util
import re
import types
from pathlib import Path
from typing import Any

import pytest

from benchmarks import reference
from tests.support.browser import opened
from tests.support.recorded.reference_data import REPO_ROOT

DOCS = REPO_ROOT / "docs"
PAGES = [REPO_ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)")
FROM_PAPERS = REPO_ROOT / "papers"  # see docs/site_hooks.py


def test_the_readme_is_short() -> None:
    assert len((REPO_ROOT / "README.md").read_text(encoding="utf-8").split()) <= 1500


def test_every_link_has_its_file() -> None:
    """The build of the site checks its own links; the README's, and those of its pictures, it does not see."""
    missing = [
        f"{page.relative_to(REPO_ROOT)}: {link}"
        for page in PAGES
        for link in LINK.findall(_without_code(page))
        if not link.startswith("http") and not _exists(page, link)
    ]
    assert not missing


def _without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def _exists(page: Path, link: str) -> bool:
    path = Path(link)
    picture = FROM_PAPERS / path.parent.name / "pictures" / path.name
    return (page.parent / path).exists() or picture.exists()


@pytest.mark.parametrize("name", reference.TABLES)
def test_a_table_is_what_the_command_prints(name: str) -> None:
    text = (reference.FOLDER / f"{name}.md").read_text(encoding="utf-8")
    _, _, rest = text.partition(f"<!-- {name}:begin -->\n")
    assert rest.partition(f"\n<!-- {name}:end -->")[0] == reference.TABLES[name]()


def test_every_setting_with_a_size_has_its_unit() -> None:
    from blis_jax.cluster.config import FIELDS
    from blis_jax.policies import registry

    without = {
        name
        for name, field in FIELDS.items()
        if field.type == "int" and not field.metadata["setting"].unit
    }
    assert without <= set(registry.settings())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_modules_that_a_page_names_exist(page: Path) -> None:
    """`engine/calendar.py`, `blis_jax.workload.reference`: a page must not name what has moved."""
    text = page.read_text(encoding="utf-8")
    files = re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*\.py)`", text)
    roots = [REPO_ROOT, REPO_ROOT / "blis_jax", page.parent, REPO_ROOT / "docs"]
    gone = [file for file in files if not any((root / file).exists() for root in roots)]
    packages = "blis_jax|sweeps|surrogate|papers|benchmarks"
    for name in re.findall(
        rf"(?:`|import |from |-m |::: )((?:{packages})(?:\.[a-zA-Z_0-9]+)+)", text
    ):
        gone += [] if _is_there(name.split(".")) else [name]
    assert sorted(set(gone) - {"mine.py", "registry.py"}) == []


def _is_there(parts: list[str]) -> bool:
    """Whether it is a module, or a name that a module's text has."""
    for at in range(len(parts), 0, -1):
        base = REPO_ROOT.joinpath(*parts[:at])
        for file in (base.with_suffix(".py"), base / "__init__.py"):
            if file.exists():
                rest = parts[at : at + 1]
                return not rest or rest[0] in file.read_text(encoding="utf-8")
    return False


def _blocks(kind: str) -> list[str]:
    text = (REPO_ROOT / "README.md").read_text(encoding="utf-8")
    return [
        block
        for name, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
        if name == kind
    ]


def test_the_readme_s_policy_can_be_named(tmp_path: Path) -> None:
    from blis_jax import ClusterConfig

    (_, policy) = _blocks("python")
    (tmp_path / "mine.py").write_text(policy)
    config = ClusterConfig(num_instances=2, routing_policy=f"{tmp_path / 'mine.py'}:shortest_queue")
    assert config.replace(**{"routing.queue": 3}).value("routing.queue") == 3


@pytest.mark.slow
def test_the_readme_s_example_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example, _) = _blocks("python")
    exec(compile(example.replace("range(32)", "range(1)"), "README.md", "exec"), {})
    printed = next(block for block in _blocks("") if block.startswith("COMPLETED"))
    assert capsys.readouterr().out == printed


RESULTS = [
    page
    for page in sorted((DOCS / "results").glob("*.md"))
    if page.name not in {"index.md", "ledger.md"}
]
MADE_BY = re.compile(r"<!-- made by: (.+) -->")
NO_MEASUREMENT = re.compile(r"<!-- no measurement: .+ -->")
BETWEEN_MARKERS = re.compile(r"^<!-- ([\w-]+):begin -->$.*?^<!-- \1:end -->$", re.M | re.S)


def _unmade(text: str) -> list[str]:
    """Return the first lines of tables and figures that stand below no marker."""
    text = re.sub(r"^```.*?^```$", "", BETWEEN_MARKERS.sub("", text), flags=re.M | re.S)
    before, unmade = ["", ""], []
    for line in text.split("\n"):
        begins = line.startswith("![") or (line.startswith("|") and not before[-1].startswith("|"))
        marker = before[-1] or before[-2]
        if begins and not (MADE_BY.fullmatch(marker) or NO_MEASUREMENT.fullmatch(marker)):
            unmade.append(line)
        before = [before[-1], line]
    return unmade


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_every_table_and_figure_has_a_command_that_makes_it(page: Path) -> None:
    """A marker above it, the markers of a command that writes it, or a command that writes the whole page."""
    text = page.read_text(encoding="utf-8")
    if re.search(rf"--(?:page|output) {re.escape(str(page.relative_to(REPO_ROOT)))}", text):
        return
    assert _unmade(text) == []


def test_a_table_without_a_marker_is_found() -> None:
    table = "| a |\n|---|\n| 1 |\n"
    assert _unmade(f"Text.\n\n{table}\n![b](c.png)\n") == ["| a |", "![b](c.png)"]
    assert _unmade(f"<!-- made by: blis-jax sweep -->\n\n{table}") == []
    assert _unmade(f"<!-- x:begin -->\n{table}<!-- x:end -->\n") == []


@pytest.mark.parametrize("page", RESULTS, ids=lambda page: page.stem)
def test_a_command_that_makes_a_table_exists(page: Path) -> None:
    from blis_jax.commands.door import catalogue

    for command in MADE_BY.findall(page.read_text(encoding="utf-8")):
        first, *rest = command.split()
        if first == "blis-jax":
            assert {rest[0], " ".join(rest[:2])} & set(catalogue.COMMANDS), command
        else:
            assert (first, rest[0]) == ("python", "-m"), command
            assert _is_there(rest[1].split(".")), command


@pytest.fixture(scope="module")
def hooks() -> Any:
    """What the build of the site adds to a page."""
    spec = importlib.util.spec_from_file_location("site_hooks", DOCS / "site_hooks.py")
    assert spec is not None and spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    return hooks


def test_long_tables_are_folded(hooks: Any) -> None:
    rows = "".join(f"| {row} | x |\n" for row in range(hooks.MOST_ROWS))
    short = f"Before.\n\n| n | `a\\|b` |\n|---|:--|\n{rows}"
    assert hooks.with_folds(f"{short}\nAfter.\n") == f"{short}\nAfter.\n"
    said = hooks.with_folds(f"{short}| last | y |\n\nAfter.\n")
    line = f"<summary markdown>{hooks.MOST_ROWS + 1} rows: n, `a\\|b`</summary>"
    assert said.startswith(f"Before.\n\n<details markdown>\n{line}\n\n| n |")
    assert said.endswith("| last | y |\n\n</details>\n\nAfter.\n")


def test_the_build_warns_of_a_page_that_is_too_long(
    hooks: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """`make site` ends at a warning. Tables, code and folds are looked up, not read, and do not count."""
    page = types.SimpleNamespace(file=types.SimpleNamespace(src_uri="how-to/a.md"))
    prose = "<p>" + "word <em>word</em> " * (hooks.MOST_WORDS // 2) + "</p>"
    aside = "<table><td>a b</td></table><pre><code>c d</code></pre><details><p>e f</p></details>"
    for html, is_long in ((prose + aside, False), (f"{prose}<p>more</p>", True)):
        caplog.clear()
        hooks.on_page_content(html, page, {}, None)
        assert bool(caplog.records) == is_long
    for uri in ("reference/python.md", "results/ledger.md"):
        page.file.src_uri = uri
        caplog.clear()
        hooks.on_page_content(f"{prose}<p>more</p>", page, {}, None)
        assert not caplog.records


FILTERED = """<article><h1>Options</h1>
<details><summary>options of run</summary>
<table><tbody><tr><td>--seed</td></tr><tr><td>--rate</td></tr></tbody></table></details>
<details><summary>options of compare</summary><table><tbody><tr><td>--seeds</td></tr></table></details></article>"""


def test_rows_of_reference_tables_are_filtered(tmp_path: Path) -> None:
    script = (DOCS / "filter.js").read_text(encoding="utf-8")
    (tmp_path / "options.html").write_text(
        f"<meta charset=utf-8>{FILTERED}<script>{script}</script>"
    )
    shown = "[...document.querySelectorAll('tr')].filter((row) => !row.hidden)"
    rows = f"return {shown}.map((row) => row.textContent).join()"
    opens = "return [...document.querySelectorAll('details')].map((one) => one.open).join()"
    typed = "const f = document.querySelector('.filter'); f.value = '{}'; f.dispatchEvent(new Event('input')); "
    with opened(tmp_path / "options.html") as page:
        assert page.run(rows) == "--seed,--rate,--seeds" and page.run(opens) == "false,false"
        assert page.run(typed.format("SEED run") + rows) == "--seed"
        assert page.run(opens) == "true,false"
        assert page.run(typed.format("nothing") + rows) == ""
        assert page.run(typed.format("") + rows) == "--seed,--rate,--seeds"
        assert page.run(opens) == "false,false" and not page.console()


def test_the_first_use_of_a_word_links_to_the_glossary(hooks: Any) -> None:
    """In prose alone: code, headings, tables and links stay as they are."""
    other = "# TTFT\n\n```\nTTFT\n```\n\n| TTFT |\n|---|\n\n[the\nTTFT](a.md), `TTFT`, "
    said = hooks.with_glossary(f"{other}the TTFT P99, TTFT again.\n", "how-to/a.md")
    link = "[TTFT](../concepts/cluster.md#what-is-measured-of-a-request)"
    assert said == f"{other}the {link} P99, TTFT again.\n"
    assert hooks.with_glossary("TTFT", hooks.GLOSSARY) == "TTFT"
    headings = re.findall(r"^## (.+)$", (DOCS / hooks.GLOSSARY).read_text(encoding="utf-8"), re.M)
    assert set(hooks.EXPLAINED.values()) <= {one.lower().replace(" ", "-") for one in headings}
