"""How the house is built: sizes, layers, circles and copies of one idea, each with the number it is to come to.

python -m benchmarks.house           the table in Markdown on stdout
python -m benchmarks.house --write   the same, and into docs/results/house.md between its markers

Nothing is imported and nothing is run, so the command takes a few seconds.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.source_tree import (
    PACKAGES,
    Tree,
    between_folders,
    circles,
    imported_names,
    imports,
    inner_imports,
    inside,
    nodes,
    parsed,
    reached,
    shortest,
)
from blis_jax.reports.render import table_text
from papers.pages import ROOT, hand_over, table_parser

PAGE = ROOT / "docs" / "results" / "house.md"
PHASE_TESTS = ("tests/engine/phases",)
SWEEPS = "sweeps.sweep.command", "blis_jax.sweep"  # the second before it lay in sweeps
STEP, NEXT = "scan_step", "next_due"


class Row(NamedTuple):
    """One line of the table."""

    what: str
    count: int | None  # None: the tree lacks what is counted
    where: str  # what was counted, and where most of it is
    target: int | None = None  # what it is to come to; None where there is no such number


# --- floors ---------------------------------------------------------------------------------------


def on_one_floor(root: Path, package: str) -> Row:
    """Count the modules of the fullest folder of a package."""
    folders = Counter(path.parent for path in (root / package).rglob("*.py"))
    folder, count = folders.most_common(1)[0]
    where = f"modules of `{folder.relative_to(root)}/`, the fullest of {len(folders)} folders"
    return Row(f"files on one floor of `{package}/`", count, where)


def step_module(tree: Tree) -> str | None:
    """Return the module that defines the scan step; None if there is none."""
    for name, module in inside(tree, "blis_jax").items():
        if any(isinstance(node, ast.FunctionDef) and node.name == STEP for node in module.body):
            return name
    return None


def layers(tree: Tree) -> list[Row]:
    """Count the layers between the command and the step."""
    edges, step = imports(tree), step_module(tree)
    whats = "modules from `sweep` to the step", "modules between `sweep` and the step"
    if step is None:
        return [Row(what, None, f"no module defines `{STEP}`") for what in whats]
    sweep = next((name for name in SWEEPS if name in edges), SWEEPS[0])
    chain = shortest(edges, sweep, step)
    between = {name for name in reached(edges, sweep) if step in reached(edges, name)}
    steps = " → ".join(f"`{name.removeprefix('blis_jax.')}`" for name in chain)
    return [
        Row(whats[0], len(chain), f"on a shortest chain of imports: {steps}"),
        Row(whats[1], len(between), "on any chain of imports, both ends included"),
    ]


# --- copies of one idea ---------------------------------------------------------------------------


def _counts_repairs(node: ast.ClassDef) -> bool:
    return any(
        isinstance(each.target, ast.Attribute) and each.target.attr == "repairs"
        for each in nodes(node, ast.AugAssign)
    )


def repairing_loops(tree: Tree) -> Row:
    """Count loops that repeat runs until nothing is left to repair."""
    core = inside(tree, "blis_jax")
    counting = {
        f"{name}.{each.name}"
        for name, module in core.items()
        for each in nodes(module, ast.ClassDef)
        if _counts_repairs(each)
    }
    homes = {name.rpartition(".")[0] for name in counting}
    drivers = {
        name: len(list(nodes(module, ast.While)))
        for name, module in core.items()
        if name in homes or counting & set(imported_names(module))
    }
    where = ", ".join(
        f"`{name.removeprefix('blis_jax.')}`" for name, many in drivers.items() if many
    )
    what = "`while` loops of modules with a class that counts its `repairs`"
    return Row("drivers that repair", sum(drivers.values()), f"{what}: {where or 'none'}")


def jit_sites(tree: Tree) -> Row:
    """Count the places in the code that call `jax.jit`."""
    sites = Counter(
        name
        for name, module in inside(tree, "blis_jax").items()
        for node in nodes(module, ast.Attribute)
        if ast.unparse(node) == "jax.jit"
    )
    where = ", ".join(f"`{name.removeprefix('blis_jax.')}` {many}" for name, many in sites.items())
    return Row("`jax.jit` sites", sites.total(), f"in `blis_jax/`: {where or 'none'}")


def any_lines(tree: Tree) -> Row:
    """Count lines on which something is annotated as `Any` and nothing more."""
    lines: Counter[str] = Counter()
    for name, module in inside(tree, "blis_jax").items():
        annotations = [each.annotation for each in nodes(module, ast.arg)]
        annotations += [each.annotation for each in nodes(module, ast.AnnAssign)]
        places = {
            each.lineno for each in annotations if isinstance(each, ast.Name) and each.id == "Any"
        }
        lines[name.removeprefix("blis_jax.")] = len(places)
    name, most = lines.most_common(1)[0]
    where = f"lines in `blis_jax/` with an argument, variable or field of type `Any`; {most} in `{name}`"
    return Row("`: Any`", lines.total(), where, 80)


def narrowings(tree: Tree) -> Row:
    """Count comparisons with None and asserts in the modules of the step's folder and in those that they import."""
    step = step_module(tree)
    if step is None:
        return Row("`None` tests and asserts of the engine", None, f"no module defines `{STEP}`")
    edges, folder = imports(inside(tree, "blis_jax")), step.rpartition(".")[0]
    names = {name for start in inside(tree, folder) for name in reached(edges, start)}
    tests = asserts = 0
    for name in names:
        asserts += len(list(nodes(tree[name], ast.Assert)))
        tests += sum(
            isinstance(each, ast.Constant) and each.value is None
            for node in nodes(tree[name], ast.Compare)
            for each in node.comparators
        )
    where = f"{tests} and {asserts}, in the {len(names)} modules of the step's folder and below it"
    return Row("`None` tests and asserts of the engine", tests + asserts, where)


# --- sizes ----------------------------------------------------------------------------------------


def phase_tests(root: Path) -> Row:
    """Count test functions of single phases; a parametrised one counts once."""
    count = sum(
        node.name.startswith("test_")
        for folder in PHASE_TESTS
        for path in sorted((root / folder).rglob("test_*.py"))
        for node in nodes(ast.parse(path.read_text()), ast.FunctionDef)
    )
    folders = " and ".join(f"`{folder}/`" for folder in PHASE_TESTS)
    return Row("unit tests of single phases", count, f"test functions in {folders}")


def longest(tree: Tree) -> list[Row]:
    """Measure the longest module and the longest function."""
    modules = {
        name: max((n.end_lineno or 0 for n in nodes(m, ast.stmt)), default=0)
        for name, m in tree.items()
    }
    functions = {
        f"{name}.{node.name}": (node.end_lineno or 0) - node.lineno + 1
        for name, module in tree.items()
        for node in nodes(module, ast.FunctionDef)
    }
    rows = []
    for what, sizes in (("module", modules), ("function", functions)):
        name = max(sizes, key=lambda each: sizes[each])
        rows.append(Row(f"longest {what}", sizes[name], f"lines of `{name}`, of {len(sizes)}"))
    return rows


def readme(root: Path) -> Row:
    """Count the words that a newcomer is given to read."""
    return Row("README", len((root / "README.md").read_text().split()), "words of `README.md`")


# --- shape ----------------------------------------------------------------------------------------


def source_lines(root: Path) -> list[Row]:
    """Count lines and modules outside the tests."""
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            lines[package] += path.read_text(encoding="utf-8").count("\n")
            modules[package] += 1
    what = "blank lines and docstrings included"
    return [
        Row("lines of `blis_jax/`", lines["blis_jax"], what, 46_000),
        Row("lines of `sweeps/`", lines["sweeps"], what, 31_000),
        Row("lines outside the tests", lines.total(), f"of {', '.join(PACKAGES)}", 100_000),
        Row("modules of `blis_jax/`", modules["blis_jax"], "`__init__` included", 220),
        Row("modules outside the tests", modules.total(), f"of {', '.join(PACKAGES)}", 480),
    ]


def import_circles(tree: Tree) -> list[Row]:
    """Count modules that import each other in a circle, and folders of one package that do."""
    folders = [
        {f"{package}.{folder}" for folder in group}
        for package in PACKAGES
        for group in circles(between_folders(imports(inside(tree, package))))
    ]
    rows = []
    for what, groups in (
        ("folders in circles", folders),
        ("modules in circles", circles(imports(tree))),
    ):
        named = "; ".join(", ".join(sorted(group)[:12]) for group in groups[:3]) or "none"
        where = f"of all packages, by imports inside functions too: {named}"
        rows.append(Row(what, sum(map(len, groups)), where, 0))
    return rows


def function_imports(tree: Tree) -> Row:
    """Count imports inside functions."""
    counted = Counter({name: len(inner_imports(module)) for name, module in tree.items()})
    where = (
        f"outside the tests; most of them in `{counted.most_common(1)[0][0]}`"
        if counted
        else "none"
    )
    return Row("imports inside functions", counted.total(), where, 60)


COMPILED = (
    "core", "engine", "memory", "metrics", "prefix_index", "records", "results", "runs", "tables",
)  # fmt: skip
MECHANISMS = re.compile(r"\b(mechanism|rules|defects)\b|\bis (not )?None\b")


def feature_tests(tree: Tree) -> Row:
    """Count `if`s in Python on what a mechanism has, on rules of revisions, and on None."""
    counted = Counter(
        name
        for package in COMPILED
        for name, module in inside(tree, f"blis_jax.{package}").items()
        for kind in (ast.If, ast.IfExp)
        for node in nodes(module, kind)
        if MECHANISMS.search(ast.unparse(node.test))
    )
    where = f"on a mechanism, on rules or on None, in {', '.join(COMPILED)}"
    return Row("`if`s on features", counted.total(), where, 150)


def step_ladders(tree: Tree) -> Row:
    """Count lines of the scan step and of the calendar, and of the functions that they call in their own modules."""
    total = 0
    for module in inside(tree, "blis_jax").values():
        functions = {f.name: f for f in module.body if isinstance(f, ast.FunctionDef)}
        todo = [each for each in (STEP, NEXT) if each in functions]
        seen: set[str] = set()
        while todo:
            function = functions[current] if (current := todo.pop()) not in seen else None
            seen.add(current)
            if function is not None:
                total += (function.end_lineno or 0) - function.lineno + 1
                called = {n.id for n in nodes(function, ast.Name) if n.id in functions}
                todo += sorted(called - seen)
    where = f"`{STEP}` and `{NEXT}` with what they call in their own modules"
    return Row("lines of the scan step and the calendar", total, where, 80)


def untyped_options(tree: Tree) -> Row:
    """Count functions that take options as a mapping with values of any type."""
    counted = Counter(
        name
        for name, module in tree.items()
        for function in nodes(module, ast.FunctionDef)
        for argument in nodes(function.args, ast.arg)
        if argument.annotation is not None
        and argument.arg == "given"
        and ast.unparse(argument.annotation) == "Mapping[str, Any]"
    )
    return Row("`given: Mapping[str, Any]`", counted.total(), "arguments outside the tests", 0)


def config_fields(tree: Tree) -> Row:
    """Count fields of `ClusterConfig` and of the classes nested in it."""
    classes = {
        node.name: node
        for module in inside(tree, "blis_jax.cluster").values()
        for node in nodes(module, ast.ClassDef)
    }
    config = classes.get("ClusterConfig")
    if config is None:
        return Row("fields of `ClusterConfig`", None, "no module of `cluster/` defines it", 165)
    parts = [config]
    for part in parts:  # grows by the classes that a part is made of
        parts += [classes[name] for base in part.bases if (name := ast.unparse(base)) in classes]
    count = sum(
        isinstance(each, ast.AnnAssign)
        for part in parts
        for body in (part.body, *(each.body for each in part.body if isinstance(each, ast.If)))
        for each in body
    )
    numbers = sum(
        isinstance(call.func, ast.Name)
        and call.func.id == "number"
        and "setting=FIXED" not in map(ast.unparse, call.keywords)
        for module in inside(tree, "blis_jax.policies").values()
        for call in nodes(module, ast.Call)
    )
    where = f"{numbers} of them numbers of the package's policies"
    return Row("fields of `ClusterConfig`", count + numbers, where, 165)


def documented(tree: Tree) -> Row:
    """Count public docstrings that do not begin with a verb, as far as a word list tells."""
    public = [
        ast.get_docstring(node) or ""
        for name, module in tree.items()
        for node in nodes(module, ast.FunctionDef)
        if not node.name.startswith("_") and not name.startswith("benchmarks")
    ]
    noun_first = sum(
        text.startswith(("What ", "Of ", "The ", "A ", "An ", "Whether ", "How "))
        for text in public
    )
    where = f"begin with What, Of, The, A, An, Whether or How in place of a verb, of {len(public)}"
    return Row("public docstrings without a verb first", noun_first, where, 0)


def rows(root: Path = ROOT) -> list[Row]:
    """Return all lines of the table."""
    tree = parsed(root)
    of_tree: Sequence[Callable[[Tree], Row]] = (
        function_imports,
        feature_tests,
        step_ladders,
        untyped_options,
        config_fields,
        any_lines,
        narrowings,
        documented,
        repairing_loops,
        jit_sites,
    )
    return [
        *source_lines(root),
        *import_circles(tree),
        *(count(tree) for count in of_tree),
        *(on_one_floor(root, package) for package in ("blis_jax", "sweeps")),
        *layers(tree),
        phase_tests(root),
        readme(root),
        *longest(tree),
    ]


def table(counted: Sequence[Row]) -> str:
    """Return the rows in Markdown."""

    def shown(number: int | None) -> str:
        return "-" if number is None else f"{number:,}"

    rows = ((row.what, shown(row.count), shown(row.target), row.where) for row in counted)
    return table_text(("what", "now", "goal", "what is counted"), rows)


def main(words: Sequence[str] | None = None) -> int:
    """Count and print the table."""
    parser = table_parser("benchmarks.house", __doc__, f"docs/results/{PAGE.name}")
    arguments = parser.parse_args(words)
    return hand_over(table(rows()), PAGE if arguments.write else None, "house")


if __name__ == "__main__":
    sys.exit(main())
