"""When each value is computed: which loop over the endpoints, which values get a name, which are kept in a slice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sweeps.promote.golang.compiler.graph import INPUTS, Graph, Node, is_literal, live

_MOST_INLINE = 7  # operations in one expression
_DIRECT = ("input", "draw", "iota", "literal")
IDENTITIES = {"sum": 0, "prod": 1, "or": False, "and": True}


class LoopPlan:
    """The plan for the outputs of a graph."""

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
        """Numbers of the loops; scalars of a number are computed before its loop."""
        return range(max([*self._ready.values(), 0]) + 1)

    def ready(self, node: Node) -> int:
        """The loop in which, or before which, it can be computed."""
        return self._ready[node.order]

    def products_in_sums(self) -> set[int]:
        """Real products that a sum could absorb: Go may join both into one rounding, even across statements."""
        found: set[int] = set()
        for node in self.nodes:
            is_sum = node.op in ("add", "sub", "neg", "select", "cumulated")
            if is_sum or (node.op == "reduce" and node.attrs[0] == "sum"):
                found |= {arg.order for arg in node.args if arg.op == "mul" and arg.is_float}
        return found

    def is_guard(self, node: Node) -> bool:
        """Whether a reduction leaves out what this selection leaves out: `if condition { total += x }`."""
        return (
            node.op == "reduce"
            and (inner := node.args[0]).op == "select"
            and self._uses[inner.order] == 1
            and _is_identity(node.attrs[0], inner.args[2])  # type: ignore[arg-type]
        )

    def continues(self, node: Node) -> bool:
        """Whether a selection's other case is a selection of its own, so that both are one switch."""
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
        """Operations of its expression, named parts counted as none."""
        if node.op in INPUTS or node.op in ("iota", "key"):
            return 0
        own = node.op not in ("convert", "broadcast", "reversed") and not (
            node.op == "at" and self._is_direct(node.args[0])
        )
        return own + sum(self._inline_size(arg) for arg in node.args)

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
        """Selections that are part of a switch or of a reduction's condition are no values of their own."""
        for node in self.nodes:
            if self.is_guard(node):
                self.named.discard(node.args[0].order)
            if node.op == "select" and self.continues(node):
                self.named.discard(node.args[2].order)


def _is_identity(kind: str, node: Node) -> bool:
    if node.op != "literal":
        return False
    if kind in IDENTITIES:
        return is_literal(node, IDENTITIES[kind])
    if node.is_float:
        return is_literal(node, float("inf") if kind == "min" else float("-inf"))
    bits = {"int32": 31, "int64": 63}.get(node.dtype, 0)
    return is_literal(node, 2**bits - 1 if kind == "min" else -(2**bits))
