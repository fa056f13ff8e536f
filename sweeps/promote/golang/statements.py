"""Write a graph as the statements of a Go function: scalars, then a loop over the endpoints, then what depends on it.

The plan decides in which loop each value is computed, which values get a name, and which are stored in a slice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sweeps.promote.golang.graph import INPUTS, Graph, Node, is_literal, live
from sweeps.promote.golang.terms import HELPERS, Terms, printed

_MOST_INLINE = 7  # operations in one expression
_DIRECT = ("input", "draw", "iota", "literal")
_WORDS = {
    "min": "least",
    "max": "most",
    "sum": "total",
    "prod": "product",
    "or": "some",
    "and": "all",
}
IDENTITIES = {"sum": 0, "prod": 1, "or": False, "and": True}


class LoopPlan:
    """Plan the computation of a graph's outputs: loops, names and slices."""

    def __init__(self, graph: Graph, outputs: Sequence[Node]) -> None:
        self.outputs = tuple(outputs)
        self.nodes = live(outputs)
        self._names = graph.names
        self._uses = Counter(arg.order for node in self.nodes for arg in node.args)
        self._uses.update(output.order for output in outputs)
        self._ready: dict[int, int] = {}
        for node in self.nodes:
            self._ready[node.order] = self._ready_of(node)
        self._inline: dict[int, int] = {}
        self.named = {node.order for node in self.nodes if self._is_named(node)}
        self.needed: dict[int, set[int]] = {node.order: set() for node in self.nodes}
        self.kept: list[Node] = []  # in slices
        self._place()

    @property
    def levels(self) -> range:
        """Return the numbers of the loops; scalars with a loop's number are computed before that loop."""
        return range(max([*self._ready.values(), 0]) + 1)

    def ready(self, node: Node) -> int:
        """Return the number of the loop in which (for scalars: before which) the node can be computed."""
        return self._ready[node.order]

    def products_in_sums(self) -> set[int]:
        """Return the `order` of each float product inside a sum: Go may fuse both, even across statements."""
        orders: set[int] = set()
        for node in self.nodes:
            is_sum = node.op in ("add", "sub", "neg", "select", "cumulated")
            if is_sum or (node.op == "reduce" and node.attrs[0] == "sum"):
                orders |= {arg.order for arg in node.args if arg.op == "mul" and arg.is_float}
        return orders

    def is_guard(self, node: Node) -> bool:
        """Return whether a reduction's operand is a selection that can be written `if condition { total += x }`."""
        return (
            node.op == "reduce"
            and (inner := node.args[0]).op == "select"
            and self._uses[inner.order] == 1
            and is_literal(inner.args[2], _identity(str(node.attrs[0]), inner.args[2]))
        )

    def continues(self, node: Node) -> bool:
        """Return whether a selection's `else` is a selection with no other reader, so that both form one switch."""
        other = node.args[2]
        return other.op == "select" and self._uses[other.order] == 1

    def _ready_of(self, node: Node) -> int:
        before = max((self._ready[arg.order] for arg in node.args), default=0)
        if node.op in ("reduce", "arg") and node.rank == 0:
            return self._ready[node.args[0].order] + 1
        if node.op in ("broadcast", "reversed", "at") and not self._is_direct(node.args[0]):
            return max(before, self._ready[node.args[0].order] + 1)
        return before

    @staticmethod
    def _is_direct(node: Node) -> bool:
        return node.op in _DIRECT or node.rank != 1

    def _is_named(self, node: Node) -> bool:
        size = self._size(node)
        is_named = (
            node.op in ("reduce", "arg", "cumulated", "select")
            or (self._uses[node.order] > 1 and size > 0)
            or (node.order in self._names and size > 1)
            or size > _MOST_INLINE
        )
        if is_named:
            self._inline[node.order] = 0
        return is_named and node.op not in INPUTS and node.op != "key"

    def _size(self, node: Node) -> int:
        """Return the number of operations in the node's expression; named parts count as none."""
        if node.op in INPUTS or node.op in ("iota", "key"):
            return 0
        counts = node.op not in ("convert", "broadcast", "reversed") and not (
            node.op == "at" and self._is_direct(node.args[0])
        )
        return counts + sum(self._inline_size(arg) for arg in node.args)

    def _inline_size(self, node: Node) -> int:
        if node.order not in self._inline:
            self._inline[node.order] = self._size(node)
        return self._inline[node.order]

    def _place(self) -> None:
        forced: set[int] = set()
        for output in self.outputs:
            if output.rank:
                self.needed[output.order].add(self.ready(output))
        self._drop_parts()
        for node in reversed(self.nodes):
            levels = self.needed[node.order]
            if node.rank == 1 and not self._is_direct(node):
                is_dear = self._size(node) > 1 or node.op in ("reduce", "cumulated", "select")
                if node.order in forced or (len(levels) > 1 and is_dear):
                    self.kept.insert(0, node)
                    levels = self.needed[node.order] = {self.ready(node)}
            for arg in node.args:
                if arg.rank == 0:
                    continue
                if node.op in ("broadcast", "reversed", "at") and not self._is_direct(arg):
                    forced.add(arg.order)
                elif node.rank == 0:
                    self.needed[arg.order].add(self.ready(arg))
                else:
                    self.needed[arg.order] |= levels

    def _drop_parts(self) -> None:
        """Unname selections that become part of a switch or of a reduction's condition."""
        for node in self.nodes:
            if self.is_guard(node):
                self.named.discard(node.args[0].order)
            if node.op == "select" and self.continues(node):
                self.named.discard(node.args[2].order)


def _identity(kind: str, node: Node) -> Any:
    """Return the start value of a reduction, in the dtype of a node."""
    if kind in IDENTITIES:
        return IDENTITIES[kind]
    if node.is_float:
        return math.inf if kind == "min" else -math.inf
    bits = {"int32": 31, "int64": 63}.get(node.dtype, 0)
    return 2**bits - 1 if kind == "min" else -(2**bits)


_RESERVED = {
    "break", "case", "chan", "const", "continue", "default", "defer", "else", "fallthrough", "for", "func", "go",
    "goto", "if", "import", "interface", "map", "package", "range", "return", "select", "struct", "switch", "type",
    "var", "len", "make", "min", "max", "append", "copy", "new", "true", "false", "nil", "math", "rand", "error",
    "string", "int", "int32", "int64", "float64", "bool", "any", "i", "j", "p", "before", "request", "endpoint",
    "endpoints", "other", "scores", "draw", "state", "signals", "known", "cap", "print", "real", "iota", "context",
}  # fmt: skip


def _block(head: str, lines: Iterable[str]) -> list[str]:
    """Return the head, the indented lines, and a closing brace."""
    return [head, *(f"\t{line}" for line in lines), "}"]


class Writer:
    """Write the Go statements that compute the outputs."""

    def __init__(self, graph: Graph, outputs: Iterable[Node], terms: Terms) -> None:
        self._names = graph.names
        self.plan = LoopPlan(graph, tuple(outputs))
        self.terms = terms
        terms.rounded = self.plan.products_in_sums()
        self._taken = set(_RESERVED) | set(HELPERS) | set(terms.draws.values())
        self.lines: list[str] = []

    def write(self, scores: Node | None) -> list[str]:
        """Write all statements; `scores` is an output with one value per endpoint, stored in the slice `scores`."""
        for level in self.plan.levels:
            for node in self.plan.nodes:
                is_here = node.rank == 0 and self.plan.ready(node) == level
                if is_here and node.order in self.plan.named and node.order not in self.terms.names:
                    self.lines += self._definition(node, ())
            self._loop(level, scores)
        return self.lines

    def expression(self, node: Node, index: tuple[str, ...] = ()) -> str:
        """Return the Go expression for a node."""
        return printed(self.terms.of(node, index))

    # --- one value --------------------------------------------------------------------------------

    def _definition(self, node: Node, index: tuple[str, ...]) -> list[str]:
        if node.op == "reduce":
            return self._inner_loop(node, index)
        if node.op == "select":
            lines = self._selection(node, index)
        else:
            lines = [f"{{}} := {printed(self.terms.typed(node, index))}"]
        name = self._new_name(node)
        self.terms.names[node.order] = name
        return [line.replace("{}", name) for line in lines]

    def _selection(self, node: Node, index: tuple[str, ...]) -> list[str]:
        cases: list[tuple[str, str]] = []
        choice, is_more = node, True
        while is_more:
            condition, value, rest = choice.args
            cases.append((self.expression(condition, index), self.expression(value, index)))
            is_more, choice = self.plan.continues(choice), rest
        default = self.terms.typed(rest, index)
        if len(cases) == 1:
            ((condition_text, value_text),) = cases
            return [
                f"{{}} := {printed(default)}",
                f"if {condition_text} {{",
                f"\t{{}} = {value_text}",
                "}",
            ]
        lines = [f"var {{}} {node.dtype}", "switch {"]
        for condition_text, value_text in cases:
            lines += [f"case {condition_text}:", f"\t{{}} = {value_text}"]
        return [*lines, "default:", f"\t{{}} = {self.expression(rest, index)}", "}"]

    def _new_name(self, node: Node, ending: str = "") -> str:
        wanted = (self._names.get(node.order) or self._described(node)) + ending
        if wanted in _RESERVED or wanted in HELPERS:
            wanted = _WORDS.get(wanted, f"the{wanted[0].upper()}{wanted[1:]}")
        name, count = wanted, 2
        while name in self._taken:
            name, count = f"{wanted}{count}", count + 1
        self._taken.add(name)
        return name

    @staticmethod
    def _described(node: Node) -> str:
        if node.op == "reduce":
            return _WORDS[str(node.attrs[0])]
        if node.op == "arg":
            return "best"
        return "holds" if node.dtype == "bool" else "value"

    # --- loops ------------------------------------------------------------------------------------

    def _loop(self, level: int, scores: Node | None) -> None:
        plan, terms = self.plan, self.terms
        reductions = [
            node
            for node in plan.nodes
            if node.op in ("reduce", "arg") and node.rank == 0 and plan.ready(node.args[0]) == level
        ]
        kept = [node for node in plan.kept if plan.ready(node) == level]
        has_scores = scores is not None and plan.ready(scores) == level
        if not (reductions or kept or has_scores):
            return
        before = dict(terms.names)
        terms.used -= {"i", "endpoint"}
        starts: list[str] = []
        body: list[str] = []
        in_slice = {node.order for node in plan.kept if plan.ready(node) < level}
        for node in plan.nodes:
            is_here = (
                node.rank == 1 and level in plan.needed[node.order] and node.order not in in_slice
            )
            if is_here and node.order in plan.named:
                body += self._element(node, starts)
        for node in kept:
            name = self._new_name(node, "s")
            starts.append(f"{name} := make([]{node.dtype}, len(endpoints))")
            terms.used |= {"endpoints", "i"}
            body.append(f"{name}[i] = {self.expression(node, ('i',))}")
            terms.slices[node.order] = name
        results = {}
        for node in reductions:
            name = self._new_name(node)
            results[node.order] = name
            starts += self._start(node, name)
            body += self._update(node, name, ("i",))
        if has_scores and scores is not None:
            terms.used |= {"endpoints", "i"}
            starts.append("scores := make([]float64, len(endpoints))")
            body.append(f"scores[i] = {self.expression(scores, ('i',) if scores.rank else ())}")
        terms.names.clear()
        terms.names.update(before | results)
        self.lines += starts + _block(self._head("i", "endpoint"), body)

    def _element(self, node: Node, starts: list[str]) -> list[str]:
        """Define a named value of one endpoint; for a running sum, add its start before the loop to `starts`."""
        if node.op != "cumulated":
            return self._definition(node, ("i",))
        name = self._new_name(node)
        self.terms.names[node.order] = name
        starts.append(
            f"{name} := {printed(self.terms.number(0, node.dtype))}"
            if node.is_float
            else f"{name} := {node.dtype}(0)"
        )
        return [f"{name} += {printed(self.terms.of(node.args[0], ('i',)))}"]

    def _head(self, place: str, element: str) -> str:
        used = self.terms.used
        used.add("endpoints")
        if element in used:
            return f"for {place if place in used else '_'}, {element} := range endpoints {{"
        return f"for {place} := range endpoints {{" if place in used else "for range endpoints {"

    def _inner_loop(self, node: Node, index: tuple[str, ...]) -> list[str]:
        """Write the loop that reduces a rank-2 node over the other endpoints, for one endpoint."""
        (operand,) = node.args
        axis = int(node.attrs[1])  # type: ignore[call-overload]
        inside = (*index[:axis], "j", *index[axis:])
        name = self._new_name(node)
        self.terms.used -= {"j", "other"}
        body: list[str] = []
        outer = dict(self.terms.names)
        for part in self._parts(operand):
            body += self._definition(part, inside)
        update = self._update(node, name, inside)
        self.terms.names.clear()
        self.terms.names.update(outer)
        lines = [*self._start(node, name), *_block(self._head("j", "other"), [*body, *update])]
        self.terms.names[node.order] = name
        return lines

    def _parts(self, operand: Node) -> list[Node]:
        """Return the named rank-2 nodes (pairs of endpoints) that the operand depends on."""
        return [
            node for node in live([operand]) if node.rank == 2 and node.order in self.plan.named
        ]

    def _start(self, node: Node, name: str) -> list[str]:
        kind = str(node.attrs[0])
        if node.op == "arg":
            operand = node.args[0]
            if operand.dtype == "bool":
                return [f"{name} := {node.dtype}(0)", f"{name}Found := false"]
            return [f"{name} := {node.dtype}(0)", f"var {name}Value {operand.dtype}"]
        start = printed(self.terms.number(_identity(kind, node), node.dtype))
        return [
            f"{name} := {start}"
            if node.is_float or node.dtype == "bool"
            else f"{name} := {node.dtype}({start})"
        ]

    def _update(self, node: Node, name: str, index: tuple[str, ...]) -> list[str]:
        kind, (operand,) = str(node.attrs[0]), node.args
        if node.op == "arg":
            return self._arg_update(node, name, index)
        if self.plan.is_guard(node):
            condition, value, _ = operand.args
            step = self._step(kind, name, value, index)
            return [f"if {self.expression(condition, index)} {{", f"\t{step}", "}"]
        return [self._step(kind, name, operand, index)]

    def _step(self, kind: str, name: str, value: Node, index: tuple[str, ...]) -> str:
        term = self.terms.of(value, index)
        if kind == "sum":
            is_one = value.op == "literal" and value.value == 1 and not value.is_float
            return f"{name}++" if is_one else f"{name} += {printed(term)}"
        if kind == "prod":
            return f"{name} *= {printed(term)}"
        if kind in ("or", "and"):
            return f"{name} = {name} {'||' if kind == 'or' else '&&'} {printed(term)}"
        return f"{name} = {kind}({name}, {printed(term, 2)})"

    def _arg_update(self, node: Node, name: str, index: tuple[str, ...]) -> list[str]:
        (operand,), kind = node.args, node.attrs[0]
        self.terms.used.add("i")
        if operand.dtype == "bool":
            value = self.expression(operand, index)
            value = value if kind == "max" else f"!({value})"
            condition = (
                f"({value}) && !{name}Found" if "||" in value else f"{value} && !{name}Found"
            )
            return [f"if {condition} {{", f"\t{name}, {name}Found = {node.dtype}(i), true", "}"]
        sign = ">" if kind == "max" else "<"
        lines = []
        text = self.expression(operand, index)
        if not text.isidentifier():
            lines, text = [f"{name}Here := {text}"], f"{name}Here"
        condition = f"i == 0 || {text} {sign} {name}Value"
        return [
            *lines,
            f"if {condition} {{",
            f"\t{name}, {name}Value = {node.dtype}(i), {text}",
            "}",
        ]
