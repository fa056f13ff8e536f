"""How the house is built: sizes, layers and copies of one idea, counted from the source text of the tree.

python -m benchmarks.house           the table in Markdown on stdout
python -m benchmarks.house --write   the same, and into docs/results/house.md between its markers

Nothing is imported and nothing is run, so the command takes a few seconds.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from benchmarks.pages import ROOT, hand_over

PAGE = ROOT / "docs" / "results" / "house.md"
PACKAGES = ("blis_jax", "sweeps", "surrogate", "papers", "benchmarks")
PHASE_TESTS = ("tests/engine/phases",)
SWEEP = "blis_jax.sweep"
STEP = "scan_step"
Node = TypeVar("Node", bound=ast.AST)
Tree = Mapping[str, ast.Module]  # by the module's name


class Row(NamedTuple):
    """One line of the table."""

    what: str
    count: int | None  # None: the tree lacks what is counted
    where: str  # what was counted, and where most of it is


def parsed(root: Path) -> dict[str, ast.Module]:
    """All modules of the packages."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): (
            ast.parse(path.read_text(), str(path))
        )
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }


def nodes(module: ast.AST, kind: type[Node]) -> Iterator[Node]:
    """Every node of the kind."""
    return (node for node in ast.walk(module) if isinstance(node, kind))


def inside(tree: Tree, package: str) -> dict[str, ast.Module]:
    """The modules of one package."""
    return {
        name: module
        for name, module in tree.items()
        if name == package or name.startswith(f"{package}.")
    }


# --- floors ---------------------------------------------------------------------------------------


def on_one_floor(root: Path, package: str) -> Row:
    """The fullest folder of a package."""
    folders = Counter(path.parent for path in (root / package).rglob("*.py"))
    folder, count = folders.most_common(1)[0]
    where = f"modules of `{folder.relative_to(root)}/`, the fullest of {len(folders)} folders"
    return Row(f"files on one floor of `{package}/`", count, where)


# --- imports --------------------------------------------------------------------------------------


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def _imported(module: ast.Module) -> Iterator[str]:
    """Names of what is imported at run time, in functions too; of `from a import b` both a and a.b."""
    todo: deque[ast.AST] = deque([module])
    while todo:
        node = todo.popleft()
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        todo.extend(node.orelse if isinstance(node, ast.If) and _is_for_types(node) else ())
        todo.extend(() if _is_for_types(node) else ast.iter_child_nodes(node))


def imported_modules(module: ast.Module, tree: Tree) -> set[str]:
    """The modules of the tree that one module imports at run time, in functions too."""
    return set(_imported(module)) & tree.keys()


def imports(tree: Tree) -> dict[str, set[str]]:
    """The modules of the tree that each module imports."""
    return {name: imported_modules(module, tree) - {name} for name, module in tree.items()}


def shortest(edges: Mapping[str, set[str]], start: str, end: str) -> list[str]:
    """A shortest chain of imports, both ends included; empty if there is none."""
    came: dict[str, str | None] = {start: None}
    todo = deque([start])
    while todo and end not in came:
        name = todo.popleft()
        for other in sorted(edges.get(name, ())):
            if other not in came:
                came[other] = name
                todo.append(other)
    chain: list[str] = []
    at: str | None = end if end in came else None
    while at is not None:
        chain.insert(0, at)
        at = came[at]
    return chain


def reached(edges: Mapping[str, set[str]], start: str) -> set[str]:
    """What the module imports, directly or not, with itself."""
    found, todo = {start}, [start]
    while todo:
        new = edges.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def step_module(tree: Tree) -> str | None:
    """The module that defines the scan step."""
    for name, module in inside(tree, "blis_jax").items():
        if any(isinstance(node, ast.FunctionDef) and node.name == STEP for node in module.body):
            return name
    return None


def layers(tree: Tree) -> list[Row]:
    """How far it is from the command to the step."""
    edges, step = imports(tree), step_module(tree)
    whats = "modules from `sweep` to the step", "modules between `sweep` and the step"
    if step is None:
        return [Row(what, None, f"no module defines `{STEP}`") for what in whats]
    chain = shortest(edges, SWEEP, step)
    between = {name for name in reached(edges, SWEEP) if step in reached(edges, name)}
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
    """Loops that make runs again until nothing is left to repair."""
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
        if name in homes or counting & set(_imported(module))
    }
    where = ", ".join(
        f"`{name.removeprefix('blis_jax.')}`" for name, many in drivers.items() if many
    )
    what = "`while` loops of modules with a class that counts its `repairs`"
    return Row("drivers that repair", sum(drivers.values()), f"{what}: {where or 'none'}")


def jit_sites(tree: Tree) -> Row:
    """Where `jax.jit` stands in the code."""
    found = Counter(
        name
        for name, module in inside(tree, "blis_jax").items()
        for node in nodes(module, ast.Attribute)
        if ast.unparse(node) == "jax.jit"
    )
    where = ", ".join(f"`{name.removeprefix('blis_jax.')}` {many}" for name, many in found.items())
    return Row("`jax.jit` sites", found.total(), f"in `blis_jax/`: {where or 'none'}")


def any_lines(tree: Tree) -> Row:
    """Lines on which something is annotated as `Any` and nothing more."""
    lines: Counter[str] = Counter()
    for name, module in inside(tree, "blis_jax").items():
        given = [each.annotation for each in nodes(module, ast.arg)]
        given += [each.annotation for each in nodes(module, ast.AnnAssign)]
        found = {each.lineno for each in given if isinstance(each, ast.Name) and each.id == "Any"}
        lines[name.removeprefix("blis_jax.")] = len(found)
    name, most = lines.most_common(1)[0]
    where = f"lines in `blis_jax/` with an argument, variable or field of type `Any`; {most} in `{name}`"
    return Row("`: Any`", lines.total(), where)


def narrowings(tree: Tree) -> Row:
    """Comparisons with None and asserts in what the step imports."""
    step = step_module(tree)
    if step is None:
        return Row("`None` tests and asserts of the engine", None, f"no module defines `{STEP}`")
    names = reached(imports(inside(tree, "blis_jax")), step)
    tests = asserts = 0
    for name in names:
        asserts += len(list(nodes(tree[name], ast.Assert)))
        tests += sum(
            isinstance(each, ast.Constant) and each.value is None
            for node in nodes(tree[name], ast.Compare)
            for each in node.comparators
        )
    where = f"{tests} and {asserts}, in the {len(names)} modules that the step's module imports"
    return Row("`None` tests and asserts of the engine", tests + asserts, where)


# --- sizes ----------------------------------------------------------------------------------------


def phase_tests(root: Path) -> Row:
    """Test functions of single phases; a parametrised one counts once."""
    count = sum(
        node.name.startswith("test_")
        for folder in PHASE_TESTS
        for path in sorted((root / folder).rglob("test_*.py"))
        for node in nodes(ast.parse(path.read_text()), ast.FunctionDef)
    )
    folders = " and ".join(f"`{folder}/`" for folder in PHASE_TESTS)
    return Row("unit tests of single phases", count, f"test functions in {folders}")


def longest(tree: Tree) -> list[Row]:
    """The longest module and the longest function."""
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
    """How much a newcomer is given to read."""
    return Row("README", len((root / "README.md").read_text().split()), "words of `README.md`")


def rows(root: Path = ROOT) -> list[Row]:
    """All lines of the table."""
    tree = parsed(root)
    of_tree: Sequence[Callable[[Tree], Row]] = (repairing_loops, jit_sites, any_lines, narrowings)
    return [
        *(on_one_floor(root, package) for package in ("blis_jax", "sweeps")),
        *layers(tree),
        *(count(tree) for count in of_tree),
        phase_tests(root),
        readme(root),
        *longest(tree),
    ]


def table(counted: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| what | now | what is counted |", "|---|---|---|"]
    for row in counted:
        count = "-" if row.count is None else f"{row.count:,}"
        lines.append(f"| {row.what} | {count} | {row.where} |")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None) -> int:
    """Count and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help=f"also write docs/results/{PAGE.name}")
    arguments = parser.parse_args(words)
    return hand_over(table(rows()), PAGE if arguments.write else None, "house")


if __name__ == "__main__":
    sys.exit(main())
