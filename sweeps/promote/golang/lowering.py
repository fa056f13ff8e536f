"""Merge two jaxprs of a policy, traced at two numbers of endpoints, into one graph for any number of endpoints.

A number that differs between the two jaxprs by as much as the number of endpoints stands for that number, plus an
offset. Any other difference means that the policy depends on the cluster's size in a way that Go cannot follow. Every
value keeps its line in the policy and its name there.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sweeps.promote.golang.graph import Graph, Node
from sweeps.promote.golang.structure import ELEMENTWISE, ROUNDINGS, STRUCTURE
from sweeps.promote.golang.terms import camel
from sweeps.promote.golang.values import ENDPOINTS, Affine, Length, Use, Value, value_of
from sweeps.promote.promotion import NotMappedError

_ROOT = Path(__file__).resolve().parents[3]
_NOT_THE_POLICY = (
    "site-packages",
    str(_ROOT / "sweeps/promote/golang"),
    str(_ROOT / "blis_jax/core/exact.py"),
    str(_ROOT / "blis_jax/lazy.py"),
    str(_ROOT / "tests/support/checked_shapes.py"),  # which wraps functions in tests
)


class Origins:
    """Record the source lines of equations, and the variables that their results are assigned to."""

    def __init__(self) -> None:
        self._last: dict[tuple[tuple[str, int], ...], Node] = {}

    def place_of(self, equation: Any) -> str:
        """Return `file.py:line` of the policy's code for an equation; "" if unknown."""
        frames = _frames(equation)
        return f"{_short(frames[0][0])}:{frames[0][1]}" if frames else ""

    def record(self, equation: Any, node: Node) -> None:
        """Record the result of an equation; the last result of a statement is the one that the statement assigns."""
        frames = _frames(equation)
        if frames:
            self._last[frames] = node

    def names(self) -> dict[int, str]:
        """Return the first variable of the policy that each node is assigned to, by the node's order."""
        names: dict[int, str] = {}
        for frames, node in self._statements().items():
            name = _assigned(*frames[0])
            if name and node.order not in names:
                names[node.order] = camel(name)
        return names

    def _statements(self) -> dict[tuple[tuple[str, int], ...], Node]:
        """Return the results by call stack; all lines of a statement count as its first line."""
        statements: dict[tuple[tuple[str, int], ...], Node] = {}
        for frames, node in self._last.items():
            (file, line), *outer = frames
            statements[((file, _first_line(file, line)), *outer)] = node
        return statements


def _frames(equation: Any) -> tuple[tuple[str, int], ...]:
    traceback = equation.source_info.traceback
    if traceback is None:
        return ()
    frames = []
    for frame in traceback.frames:
        name = frame.file_name
        if name == str(_ROOT / "sweeps/promote/golang/tracing.py"):
            break
        if name.endswith(".py") and not any(part in name for part in _NOT_THE_POLICY):
            frames.append((name, frame.line_num))
    return tuple(frames)


def place_of_policy(policy: Any) -> str:
    """Return `file.py:line` where a policy's function begins."""
    return place_of_function(policy.decide)


def place_of_function(function: Any) -> str:
    """Return `file.py:line` where a function begins; its `repr` if it has no code."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{_short(code.co_filename)}:{code.co_firstlineno}" if code else repr(function)


def _short(name: str) -> str:
    """Return a path relative to the repository, or a file's bare name: artifacts must not hold a machine's paths."""
    path = Path(name).resolve()
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else path.name


@functools.cache
def _assignments(file: str) -> tuple[tuple[int, int, str], ...]:
    """Return (first line, last line, name) of every assignment to a single name in a file."""
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return ()
    assignments = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name) and node.end_lineno is not None:
                assignments.append((node.lineno, node.end_lineno, target.id))
    return tuple(assignments)


def _assigned(file: str, line: int) -> str:
    return next((name for first, last, name in _assignments(file) if first <= line <= last), "")


def _first_line(file: str, line: int) -> int:
    return next((first for first, last, _ in _assignments(file) if first <= line <= last), line)


# numbers of endpoints that the policy is traced with; no usual length of anything else
SIZES = (
    11,
    13,
)
INLINED = ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "core_call")
_IDENTITY = ("optimization_barrier", "copy", "stop_gradient", "copy_p", "sharding_constraint")


class Lowering:
    """Translate the equations of two jaxprs, traced at two sizes, in parallel."""

    def __init__(self, graph: Graph, sizes: tuple[int, int], what: str, place: str) -> None:
        self.graph = graph
        self.origins = Origins()
        self._sizes = sizes
        self._what, self._place = what, place  # the policy and its line, for messages

    def outputs(self, jaxprs: tuple[Any, Any], inputs: Sequence[Value]) -> list[Value]:
        """Return the results of two closed jaxprs, merged, for these inputs."""
        small, large = jaxprs
        consts = [
            self._constant(first, other)
            for first, other in zip(small.consts, large.consts, strict=True)
        ]
        return self._run((small.jaxpr, large.jaxpr), [*consts, *inputs], "")

    def _run(self, jaxprs: tuple[Any, Any], values: Sequence[Value], origin: str) -> list[Value]:
        small, large = jaxprs
        known: dict[Any, Value] = dict(zip([*small.constvars, *small.invars], values, strict=True))
        if len(small.eqns) != len(large.eqns):
            raise self.error(
                "the computation", "has another length for another number of endpoints"
            )
        for first, other in zip(small.eqns, large.eqns, strict=True):
            if first.primitive.name != other.primitive.name:
                raise self.error(
                    first.primitive.name, "is there for some numbers of endpoints only"
                )
            self.graph.origin = origin or self.origins.place_of(first) or self._place
            arguments = [
                self._operand(known, a, b) for a, b in zip(first.invars, other.invars, strict=True)
            ]
            for variable, value in zip(
                first.outvars, self._translated(first, other, arguments), strict=True
            ):
                known[variable] = value
                if not origin and value.nodes.size == 1:
                    self.origins.record(first, value.node)
        return [
            self._operand(known, a, b) for a, b in zip(small.outvars, large.outvars, strict=True)
        ]

    def _translated(self, first: Any, other: Any, arguments: list[Value]) -> list[Value]:
        name = first.primitive.name
        if name in INLINED:
            if first.params.get("name") == "_uniform":
                shape = self._shape(first.outvars[0], other.outvars[0])
                drawn = STRUCTURE["draw"](Use(self, {}, arguments, shape))
                if drawn is not None:
                    return [drawn]
            key = next(key for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in first.params)
            return self._call((first.params[key], other.params[key]), arguments)
        if name in _IDENTITY:
            return arguments
        params = self._params(first, other)
        shapes = [self._shape(a, b) for a, b in zip(first.outvars, other.outvars, strict=True)]
        dtype = _dtype(first.outvars[0])
        operation = ELEMENTWISE[name].operation if name in ELEMENTWISE else ""
        if name == "round":
            operation = ROUNDINGS[int(params["rounding_method"])]
        if operation:
            use = Use(self, {"dtype": dtype}, arguments, shapes[0])
            return [use.mapped(lambda *args: use.of(operation, *args))]
        if name in STRUCTURE:
            translated = STRUCTURE[name](Use(self, params | {"dtype": dtype}, arguments, shapes[0]))
            if translated is not None:
                return [translated]
        return [
            self.unsupported(name, _dtype(var), shape, arguments)
            for var, shape in zip(first.outvars, shapes, strict=True)
        ]

    def _call(self, inner: tuple[Any, Any], arguments: list[Value]) -> list[Value]:
        """Inline a call; its equations keep the line of the call, as JAX may reuse an older trace of the function."""
        small, large = (getattr(call, "jaxpr", call) for call in inner)
        consts: list[Value] = []
        if hasattr(inner[0], "consts"):
            pairs = zip(inner[0].consts, inner[1].consts, strict=True)
            consts = [self._constant(a, b) for a, b in pairs]
        return self._run((small, large), [*consts, *arguments], self.graph.origin)

    def unsupported(
        self, name: str, dtype: str, shape: Sequence[Length], arguments: Sequence[Value]
    ) -> Value:
        """Return a placeholder for a value that Go cannot compute; it is an error only if an output needs it."""
        rank = sum(length == ENDPOINTS for length in shape)
        args = [node for argument in arguments for node in argument.nodes.reshape(-1)]
        node = self.graph.make("unsupported", args, (name,), dtype, rank)
        return (
            value_of(shape, node)
            if all(length == ENDPOINTS for length in shape)
            else Value(
                tuple(shape), np.full([n for n in shape if isinstance(n, int)], node, dtype=object)
            )
        )

    # --- what differs between the two sizes --------------------------------------------------------

    def merged(self, first: Any, other: Any) -> Any:
        """Merge a parameter's values at both sizes: equal ones stay as they are, growing ones become an `Affine`."""
        if isinstance(first, (tuple, list)) and isinstance(other, (tuple, list)):
            if len(first) == len(other):
                return tuple(self.merged(a, b) for a, b in zip(first, other, strict=True))
        elif (
            isinstance(first, (int, np.integer)) and not isinstance(first, bool) and first != other
        ):
            if other - first == self._sizes[1] - self._sizes[0]:
                return Affine(int(first) - self._sizes[0])
        elif _is_same(first, other):
            return first
        raise self.error(repr(first), f"becomes {other!r} when the number of endpoints changes")

    def _params(self, first: Any, other: Any) -> dict[str, Any]:
        kept = {}
        for key, value in first.params.items():
            parts = value if isinstance(value, tuple) else (value,)
            if not any(hasattr(part, "eqns") or hasattr(part, "jaxpr") for part in parts):
                kept[key] = self.merged(value, other.params[key])
        return kept

    def _shape(self, first: Any, other: Any) -> tuple[Length, ...]:
        return tuple(
            self._length(a, b) for a, b in zip(first.aval.shape, other.aval.shape, strict=True)
        )

    def _length(self, first: int, other: int) -> Length:
        if first == other:
            return int(first)
        if (first, other) == self._sizes:
            return ENDPOINTS
        raise self.error(f"an array of length {first}", f"has length {other} when an endpoint more or less is there; "
                         "arrays must be as long as the list of endpoints or of fixed length")  # fmt: skip

    def _operand(self, known: Mapping[Any, Value], first: Any, other: Any) -> Value:
        if hasattr(first, "val"):
            return self._constant(first.val, other.val)
        return known[first]

    def _constant(self, first: Any, other: Any) -> Value:
        small, large = np.asarray(first), np.asarray(other)
        dtype = str(small.dtype)
        shape = tuple(self._length(a, b) for a, b in zip(small.shape, large.shape, strict=True))
        if ENDPOINTS in shape:
            if small.size and (small == small.flat[0]).all() and (large == small.flat[0]).all():
                return value_of(shape, self.graph.literal(small.flat[0], dtype))
            raise self.error(
                "a constant array",
                "has one number for each endpoint; give it as a function of signals",
            )
        if _is_same(small, large):
            return value_of(
                shape, [self.graph.literal(number, dtype) for number in small.reshape(-1)]
            )
        if small.ndim == 0 and float(large - small) == self._sizes[1] - self._sizes[0]:
            offset = int(small) - self._sizes[0]
            return value_of((), self.graph.make("length", (), (offset,), dtype, 0))
        raise self.error(
            f"the number {small}", f"becomes {large} when the number of endpoints changes"
        )

    def error(self, what: str, why: str) -> NotMappedError:
        """Return the error about a construct that cannot be translated, with the policy's line."""
        where = f" at {self.graph.origin or self._place}"
        return NotMappedError(
            f"{self._what}: {what}{where} {why}; write it with jnp over the whole array, or leave out this policy"
        )


def _dtype(variable: Any) -> str:
    name = str(variable.aval.dtype)
    return "key" if name.startswith("key<") else name


def _is_same(first: Any, other: Any) -> bool:
    if isinstance(first, np.ndarray) or isinstance(other, np.ndarray):
        return bool(np.array_equal(first, other, equal_nan=np.asarray(first).dtype.kind == "f"))
    try:
        return bool(first == other) or first is other
    except (TypeError, ValueError):
        return first is other


def check_dtypes(nodes: Sequence[Node], what: str) -> None:
    """Refuse a policy that computes in a dtype without a counterpart in Go."""
    for node in nodes:
        if node.dtype not in ("bool", "int32", "int64", "float64") and node.op != "unsupported":
            raise NotMappedError(
                f"{what}: a number of dtype {node.dtype} at {node.origin or 'its result'} has no counterpart; "
                "compute in float64, int32, int64 or bool"
            )
