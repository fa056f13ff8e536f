"""A graph as the statements of a Go function: scalars, then a loop over the endpoints, then what it made possible."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sweeps.promote.golang.compiler.expressions import printed
from sweeps.promote.golang.compiler.graph import Graph, Node, live
from sweeps.promote.golang.compiler.plan import LoopPlan
from sweeps.promote.golang.compiler.terms import HELPERS, Terms

_RESERVED = {
    "break", "case", "chan", "const", "continue", "default", "defer", "else", "fallthrough", "for", "func", "go",
    "goto", "if", "import", "interface", "map", "package", "range", "return", "select", "struct", "switch", "type",
    "var", "len", "make", "min", "max", "append", "copy", "new", "true", "false", "nil", "math", "rand", "error",
    "string", "int", "int32", "int64", "float64", "bool", "any", "i", "j", "p", "before", "request", "endpoint",
    "endpoints", "other", "scores", "draw", "state", "signals", "known", "cap", "print", "real", "iota", "context",
}  # fmt: skip
_STARTS = {"sum": 0, "prod": 1, "or": False, "and": True}


@dataclass(frozen=True)
class Lines:
    """Lines of a block, without the indentation of what is around it."""

    lines: tuple[str, ...]

    def inside(self, head: str) -> list[str]:
        """The block under a head that ends with a brace."""
        return [head, *(f"\t{line}" for line in self.lines), "}"]


class Writer:
    """Writes the statements that compute the outputs."""

    def __init__(self, graph: Graph, outputs: Iterable[Node], terms: Terms) -> None:
        self._names = graph.names
        self.plan = LoopPlan(graph, tuple(outputs))
        self.terms = terms
        terms.rounded = self.plan.products_in_sums()
        self._taken = set(_RESERVED) | set(HELPERS) | set(terms.draws.values())
        self.lines: list[str] = []

    def write(self, scores: Node | None) -> list[str]:
        """All statements; `scores` is an output for each endpoint, written into the slice `scores`."""
        for level in self.plan.levels:
            for node in self.plan.nodes:
                is_here = node.rank == 0 and self.plan.ready(node) == level
                if is_here and node.order in self.plan.named and node.order not in self.terms.names:
                    self.lines += self._definition(node, ())
            self._loop(level, scores)
        return self.lines

    def expression(self, node: Node, index: tuple[str, ...] = ()) -> str:
        """The text of a value."""
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
        one, is_more = node, True
        while is_more:
            condition, value, rest = one.args
            cases.append((self.expression(condition, index), self.expression(value, index)))
            is_more, one = self.plan.continues(one), rest
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
            wanted = {"min": "least", "max": "most"}.get(
                wanted, f"the{wanted[0].upper()}{wanted[1:]}"
            )
        name, count = wanted, 2
        while name in self._taken:
            name, count = f"{wanted}{count}", count + 1
        self._taken.add(name)
        return name

    @staticmethod
    def _described(node: Node) -> str:
        words = {
            "min": "least",
            "max": "most",
            "sum": "total",
            "prod": "product",
            "or": "some",
            "and": "all",
        }
        if node.op == "reduce":
            return words[str(node.attrs[0])]
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
        found = {}
        for node in reductions:
            name = self._new_name(node)
            found[node.order] = name
            starts += self._start(node, name)
            body += self._update(node, name, ("i",))
        if has_scores and scores is not None:
            terms.used |= {"endpoints", "i"}
            starts.append("scores := make([]float64, len(endpoints))")
            body.append(f"scores[i] = {self.expression(scores, ('i',) if scores.rank else ())}")
        terms.names.clear()
        terms.names.update(before | found)
        self.lines += starts + Lines(tuple(body)).inside(self._head("i", "endpoint"))

    def _element(self, node: Node, starts: list[str]) -> list[str]:
        """A named value of one endpoint; a sum that the loop carries on begins before the loop."""
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
        self.terms.used.add("endpoints")
        if element not in self.terms.used:
            return (
                f"for {place} := range endpoints {{"
                if place in self.terms.used
                else "for range endpoints {"
            )
        return f"for {place if place in self.terms.used else '_'}, {element} := range endpoints {{"

    def _inner_loop(self, node: Node, index: tuple[str, ...]) -> list[str]:
        """A reduction over the other endpoints for one of them."""
        (operand,) = node.args
        axis = int(node.attrs[1])  # type: ignore[call-overload]
        inside = (*index[:axis], "j", *index[axis:])
        name = self._new_name(node)
        self.terms.used -= {"j", "other"}
        body: list[str] = []
        outer = dict(self.terms.names)
        for one in self._parts(operand):
            body += self._definition(one, inside)
        update = self._update(node, name, inside)
        self.terms.names.clear()
        self.terms.names.update(outer)
        lines = [
            *self._start(node, name),
            *Lines((*body, *update)).inside(self._head("j", "other")),
        ]
        self.terms.names[node.order] = name
        return lines

    def _parts(self, operand: Node) -> list[Node]:
        """Named values of pairs that the operand is made of."""
        return [one for one in live([operand]) if one.rank == 2 and one.order in self.plan.named]

    def _start(self, node: Node, name: str) -> list[str]:
        kind = str(node.attrs[0])
        if node.op == "arg":
            operand = node.args[0]
            if operand.dtype == "bool":
                return [f"{name} := {node.dtype}(0)", f"{name}Found := false"]
            return [f"{name} := {node.dtype}(0)", f"var {name}Value {operand.dtype}"]
        if kind in _STARTS:
            start = printed(self.terms.number(_STARTS[kind], node.dtype))
        else:
            sign = 1 if kind == "min" else -1
            value = sign * float("inf")
            if not node.is_float:
                bits = {"int32": 31, "int64": 63}[node.dtype]
                value = 2**bits - 1 if kind == "min" else -(2**bits)
            start = printed(self.terms.number(value, node.dtype))
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
        one = self.terms.of(value, index)
        if kind == "sum":
            is_one = value.op == "literal" and value.value == 1 and not value.is_float
            return f"{name}++" if is_one else f"{name} += {printed(one)}"
        if kind == "prod":
            return f"{name} *= {printed(one)}"
        if kind in ("or", "and"):
            return f"{name} = {name} {'||' if kind == 'or' else '&&'} {printed(one)}"
        return f"{name} = {kind}({name}, {printed(one, 2)})"

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
