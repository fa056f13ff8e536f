"""The source tree as text: its modules, what they import, and which imports form circles."""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

PACKAGES = ("blis_jax", "sweeps", "surrogate", "papers", "benchmarks")
Node = TypeVar("Node", bound=ast.AST)
Tree = Mapping[str, ast.Module]  # by the module's name


def parsed(root: Path) -> dict[str, ast.Module]:
    """Parse all modules of the packages."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): (
            ast.parse(path.read_text(), str(path))
        )
        for package in PACKAGES
        for path in sorted((root / package).rglob("*.py"))
    }


def nodes(module: ast.AST, kind: type[Node]) -> Iterator[Node]:
    """Yield every node of the kind."""
    return (node for node in ast.walk(module) if isinstance(node, kind))


def inside(tree: Tree, package: str) -> dict[str, ast.Module]:
    """Return the modules of one package."""
    return {
        name: module
        for name, module in tree.items()
        if name == package or name.startswith(f"{package}.")
    }


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imported_names(module: ast.Module) -> Iterator[str]:
    """Yield names of what is imported at run time, in functions and by `lazy.Module` too; of `from a import b` both."""
    todo: deque[ast.AST] = deque([module])
    while todo:
        node = todo.popleft()
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{each.name}" for each in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] == "Module":
            yield from (name.value for name in nodes(node, ast.Constant))
        todo.extend(node.orelse if isinstance(node, ast.If) and _is_for_types(node) else ())
        todo.extend(() if _is_for_types(node) else ast.iter_child_nodes(node))


def inner_imports(module: ast.Module) -> set[int]:
    """Return the lines of imports inside functions."""
    return {
        node.lineno
        for kind in (ast.FunctionDef, ast.AsyncFunctionDef)
        for function in nodes(module, kind)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }


def imported_modules(module: ast.Module, tree: Tree) -> set[str]:
    """Return the modules of the tree that one module imports at run time, in functions too."""
    return set(imported_names(module)) & tree.keys()


def imports(tree: Tree) -> dict[str, set[str]]:
    """Return the modules of the tree that each module imports."""
    return {name: imported_modules(module, tree) - {name} for name, module in tree.items()}


def shortest(edges: Mapping[str, set[str]], start: str, end: str) -> list[str]:
    """Return a shortest chain of imports, both ends included; empty if there is none."""
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
    """Return the modules that a module imports, directly or not, and the module itself."""
    modules, todo = {start}, [start]
    while todo:
        new = edges.get(todo.pop(), set()) - modules
        modules |= new
        todo += new
    return modules


def folder_of(name: str) -> str | None:
    """Return the folder of its package that a module belongs to; None for one on the top floor or a
    door (`__main__`).
    """
    parts = name.split(".")
    return parts[1] if len(parts) > 2 and parts[-1] != "__main__" else None


def between_folders(edges: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return which folder imports which others, from the imports between modules of one package."""
    joined: dict[str, set[str]] = {}
    for name, others in edges.items():
        folder = folder_of(name)
        if folder is not None:
            known = {folder_of(other) for other in others} - {None, folder}
            joined.setdefault(folder, set()).update(each for each in known if each)
    return joined


def circles(edges: Mapping[str, Iterable[str]]) -> list[set[str]]:
    """Return groups in which each reaches each other by imports, the largest first; none of one alone."""
    ways = {name: set(others) & edges.keys() for name, others in edges.items()}
    reaching = {name: reached(ways, name) for name in ways}
    groups: list[set[str]] = []
    for name in sorted(ways):
        group = {other for other in reaching[name] if name in reaching[other]}
        if len(group) > 1 and group not in groups:
            groups.append(group)
    return sorted(groups, key=len, reverse=True)
