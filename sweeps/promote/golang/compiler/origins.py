"""Where in a policy's Python a value comes from, and what the policy calls it."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path
from typing import Any

from sweeps.promote.golang.compiler.graph import Node

_ROOT = Path(__file__).resolve().parents[4]
_NOT_THE_POLICY = (
    "site-packages",
    str(_ROOT / "sweeps/promote/golang"),
    str(_ROOT / "blis_jax/core/exact.py"),
    str(_ROOT / "blis_jax/lazy.py"),
)


class Origins:
    """Lines of equations, and names of the variables that they are assigned to."""

    def __init__(self) -> None:
        self._last: dict[tuple[tuple[str, int], ...], Node] = {}

    def place_of(self, equation: Any) -> str:
        """`file.py:line` of the policy; "" if unknown."""
        frames = _frames(equation)
        return f"{_short(frames[0][0])}:{frames[0][1]}" if frames else ""

    def record(self, equation: Any, node: Node) -> None:
        """The equation's result; the last one of a statement is what the statement assigns."""
        frames = _frames(equation)
        if frames:
            self._last[frames] = node

    def names(self) -> dict[int, str]:
        """By order of a node: the variable of the policy that it is assigned to, the first if there are several."""
        found: dict[int, str] = {}
        for frames, node in self._statements().items():
            name = _assigned(*frames[0])
            if name and node.order not in found:
                found[node.order] = camel(name)
        return found

    def _statements(self) -> dict[tuple[tuple[str, int], ...], Node]:
        """By call stack; the lines of one statement are one."""
        found: dict[tuple[tuple[str, int], ...], Node] = {}
        for frames, node in self._last.items():
            (file, line), *outer = frames
            found[((file, _first_line(file, line)), *outer)] = node
        return found


def camel(name: str) -> str:
    """`is_over_limit` -> `isOverLimit`."""
    first, *rest = [part for part in re.split(r"[^0-9A-Za-z]+", name) if part]
    return first[0].lower() + first[1:] + "".join(part[0].upper() + part[1:] for part in rest)


def _frames(equation: Any) -> tuple[tuple[str, int], ...]:
    traceback = equation.source_info.traceback
    if traceback is None:
        return ()
    found = []
    for frame in traceback.frames:
        name = frame.file_name
        if name == str(_ROOT / "sweeps/promote/golang/compiler/tracing.py"):
            break
        if name.endswith(".py") and not any(part in name for part in _NOT_THE_POLICY):
            found.append((name, frame.line_num))
    return tuple(found)


def place_of_policy(policy: Any) -> str:
    """`file.py:line` where a policy's function begins."""
    return place_of_function(policy.decide)


def place_of_function(function: Any) -> str:
    """`file.py:line` where a function begins; its name if it has no code."""
    code = getattr(function, "__code__", None)
    return f"{_short(code.co_filename)}:{code.co_firstlineno}" if code else repr(function)


def _short(name: str) -> str:
    """A path inside the repository, or the file's name: artifacts hold no paths of a machine."""
    path = Path(name).resolve()
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name


@functools.cache
def _assignments(file: str) -> tuple[tuple[int, int, str], ...]:
    """First line, last line and name of every plain assignment."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return ()
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and node.end_lineno is not None:
                found.append((node.lineno, node.end_lineno, target.id))
    return tuple(found)


def _assigned(file: str, line: int) -> str:
    return next((name for first, last, name in _assignments(file) if first <= line <= last), "")


def _first_line(file: str, line: int) -> int:
    return next((first for first, last, _ in _assignments(file) if first <= line <= last), line)
