"""Loops over instances with independent passes: which vector operation each outside variable becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sweeps.evolve.go.source import field, items, names_in, statements_of, text_of, walk
from sweeps.evolve.go.writer import GoValue

if TYPE_CHECKING:
    from tree_sitter import Node


_ORDERED = (
    "for_statement", "break_statement", "return_statement", "func_literal", "labeled_statement", "goto_statement",
)  # fmt: skip


@dataclass(frozen=True)
class GoLoop:
    """A loop: the container that it ranges over, and the variables of one pass."""

    node: Node
    axis: str
    over: GoValue | None  # the container, where one is ranged over
    key: str  # names in Go, empty or `_` if there is none
    element: str
    body: Node
    start: str = ""  # code of the first number, where that is not 0
    is_map: bool = False

    def own(self, snapshots: set[str], fixed: Callable[[str], bool]) -> set[str]:
        """Return the texts that index the pass's own instance; `snapshots` are the names of the snapshots."""
        keys = {self.key, f"{self.element}.ID" if self.element else ""} - {"", "_", "_.ID"}
        elements = {f"{name}[{self.key}]" for name in snapshots}
        keys |= {f"{element}.ID" for element in elements}
        for node in walk(self.body):
            if node.type == "short_var_declaration":
                left, right = items(field(node, "left")), items(field(node, "right"))
                name, value = text_of(left[0]), text_of(right[0]).removeprefix("&")
                if len(left) == 1 and fixed(name) and value in elements:
                    keys.add(f"{name}.ID")
                elif len(left) == 1 and fixed(name) and value in keys:
                    keys.add(name)
        return keys


class Claims:
    """The changes that a loop over instances makes to outside variables; `is_free`: the pass order has no effect."""

    outer: Claims | None = None
    is_free: bool

    def __init__(self, made: Any, loop: GoLoop) -> None:
        self.made, self.loop = made, loop
        self.by_node: dict[int, Callable[[Node], None]] = {}
        self.claimed: set[int] = set()
        nodes = list(walk(loop.body))
        inside = set(_declared(loop.body))
        assigned = {name for node in nodes for name in _changed(node)}
        self.outside = assigned - inside
        snapshots = {
            name
            for scope in made.scopes
            for name, value in scope.items()
            if value.kind == "snapshots"
        }
        once = _declared(loop.body)
        self.own = loop.own(
            snapshots, lambda name: name not in made.reassigned and once.count(name) == 1
        )
        shadowed = any(made.find(name) for name in inside & assigned)
        self.is_free = (
            not shadowed
            and not any(node.type in _ORDERED for node in nodes)
            and not self._acts(nodes)
        )
        if self.is_free:
            self._claim(nodes)
            names = (node for node in names_in(loop.body) if text_of(node) in self.outside)
            self.is_free = all(node.id in self.claimed for node in names)

    def _acts(self, nodes: list[Node]) -> bool:
        """Return whether the nodes call something that fixes the order of passes: a draw, copy, append or loop."""
        for node in nodes:
            if node.type != "call_expression":
                continue
            function = field(node, "function")
            if text_of(function).endswith(".Intn"):
                return True
            if function.type == "identifier":
                name = text_of(function)
                captured = self.made.captures(name)
                if (
                    name == "copy"
                    or self.made.has_loop(name)
                    or captured & self.outside
                    or "append" in captured
                ):
                    return True
        return False

    def _claim(self, nodes: list[Node]) -> None:
        own_elements = {
            text_of(base)
            for node in nodes
            if node.type == "index_expression" and (base := _base(node)) is not None
            and text_of(base) in self.outside and self._is_own(node)
        }  # fmt: skip
        for name in sorted(self.outside):
            mentions = [node for node in names_in(self.loop.body) if text_of(node) == name]
            if name in own_elements:
                if all(self._stands_in_own_element(node) for node in mentions):
                    self.claimed.update(node.id for node in mentions)
                continue
            self._claim_variable(name, nodes, mentions)

    def _is_own(self, node: Node) -> bool:
        return text_of(field(node, "index")) in self.own

    def _stands_in_own_element(self, node: Node) -> bool:
        """Return whether a container is indexed by the pass's own instance; for a table, the last index counts."""
        variable = self.made.find(text_of(node))
        depth = len(variable.axes) if variable is not None else 1
        above = node.parent
        for _ in range(depth - 1):
            if (
                above is None
                or above.type != "index_expression"
                or field(above, "operand").id != node.id
            ):
                return False
            node, above = above, above.parent
        return (
            above is not None and above.type == "index_expression"
            and field(above, "operand").id == node.id and self._is_own(above)
        )  # fmt: skip

    def _claim_variable(self, name: str, nodes: list[Node], mentions: list[Node]) -> None:
        changes = [node for node in nodes if name in _changed(node)]
        made = self.made
        if any(
            self._claim_best(name, node, mentions) for node in nodes if node.type == "if_statement"
        ):
            return
        targets = [node for node in changes if self._is_plain(node)]
        if len(targets) != len(changes) or (
            self.loop.is_map
            and made.find(name) is not None
            and (made.find(name).kind != "int" and not all(_is_flag(node) for node in changes))
        ):
            return
        if len(changes) == 1 and _is_sum(changes[0]):
            self._take(changes, made.claimed_sum, mentions, 1)
        elif len(changes) == 1 and _is_append(changes[0], name) and not self.loop.is_map:
            self._take(changes, made.claimed_append, mentions, 2)
        elif len(changes) == 1 and extreme_of(changes[0], name) is not None:
            self._take(changes, made.claimed_extreme, mentions, 2)
        elif changes and all(_is_flag(node) for node in changes):
            values = {text_of(field(node, "right")) for node in changes}
            if len(values) == 1:
                self._take(changes, made.claimed_flag, mentions, len(changes))

    def _is_plain(self, node: Node) -> bool:
        """Return whether the statement assigns exactly one variable."""
        if node.type != "assignment_statement":
            return items(node)[0].type == "identifier"
        return (
            len(items(field(node, "left"))) == 1
            and items(field(node, "left"))[0].type == "identifier"
        )

    def _take(
        self, changes: list[Node], claim: Callable[[Node], None], mentions: list[Node], times: int
    ) -> None:
        inside = [
            mention for mention in mentions for change in changes if _contains(change, mention)
        ]
        if len(inside) != times:
            return
        self.claimed.update(mention.id for mention in inside)
        self.by_node.update(dict.fromkeys((change.id for change in changes), claim))

    def _claim_best(self, name: str, node: Node, mentions: list[Node]) -> bool:
        """Claim `if value > best { best = value; … }`: the best value and the variables that are set with it."""
        if node.id in self.by_node:
            return any(mention.id in self.claimed for mention in mentions)
        met = best_of(field(node, "condition"), self.outside)
        pairs = assignments(field(node, "consequence"))
        if met is None or pairs is None or node.child_by_field_name("alternative") is not None:
            return False
        _, value, best, guards = met
        targets = [text_of(target) for target, _ in pairs]
        new = {text_of(target): assigned for target, assigned in pairs}
        is_best = text_of(best) in new and text_of(new[text_of(best)]) == text_of(value)
        if (
            not is_best
            or len(set(targets)) != len(targets)
            or not set(targets) <= self.outside
            or name not in targets
        ):
            return False
        if self.loop.is_map and len(targets) > 1:
            return False
        read = [value, *guards, *(assigned for _, assigned in pairs)]
        first = node.child_by_field_name("initializer")
        read += [first] if first is not None else []
        if any(text_of(mention) in self.outside and mention.id != best.id and not self._stands_in_own_element(mention)
               for part in read for mention in names_in(part)):  # fmt: skip
            return False
        self.claimed.update(target.id for target, _ in pairs)
        self.claimed.add(best.id)
        self.by_node[node.id] = self.made.claimed_best
        return True


def best_of(condition: Node, outside: set[str]) -> tuple[str, Node, Node, list[Node]] | None:
    """Return the parts of `value > best` in a condition: operator, value, best, other conditions; else None."""
    while condition.type == "parenthesized_expression":
        condition = items(condition)[0]
    if condition.type != "binary_expression":
        return None
    operator, left, right = (
        text_of(field(condition, "operator")),
        field(condition, "left"),
        field(condition, "right"),
    )
    if operator == "&&":
        for side, other in ((left, right), (right, left)):
            met = best_of(side, outside)
            if met is not None and not any(text_of(name) in outside for name in names_in(other)):
                return (*met[:3], [*met[3], other])
        return None
    turned = {"<": ">", ">": "<", "<=": ">=", ">=": "<="}
    if operator not in turned:
        return None
    if right.type == "identifier" and text_of(right) in outside:
        return operator, left, right, []
    if left.type == "identifier" and text_of(left) in outside:
        return turned[operator], right, left, []
    return None


def extreme_of(node: Node, name: str) -> tuple[str, Node] | None:
    """Return `max` or `min` and the value of `best = max(best, value)`; None for any other statement."""
    if node.type != "assignment_statement" or text_of(field(node, "operator")) != "=":
        return None
    call = items(field(node, "right"))[0]
    if call.type != "call_expression":
        return None
    function = text_of(field(call, "function")).removeprefix("math.").lower()
    arguments = items(field(call, "arguments"))
    if function not in ("max", "min") or len(arguments) != 2 or name not in map(text_of, arguments):
        return None
    return function, arguments[1] if text_of(arguments[0]) == name else arguments[0]


def assignments(block: Node) -> list[tuple[Node, Node]] | None:
    """Return the (target, value) pairs of a block that only assigns variables; None for any other block."""
    pairs: list[tuple[Node, Node]] = []
    for node in statements_of(block):
        if node.type != "assignment_statement" or text_of(field(node, "operator")) != "=":
            return None
        left, right = items(field(node, "left")), items(field(node, "right"))
        if len(left) != len(right) or any(target.type != "identifier" for target in left):
            return None
        pairs += zip(left, right, strict=True)
    return pairs


def _declared(body: Node) -> list[str]:
    names = []
    for node in walk(body):
        if node.type == "short_var_declaration":
            names += [text_of(name) for name in items(field(node, "left"))]
        elif node.type in ("var_spec", "const_spec"):
            names += [
                text_of(name) for name in node.children_by_field_name("name") if name.is_named
            ]
    return names


def _changed(node: Node) -> list[str]:
    """Return the variables that a statement assigns, whole or in one element."""
    if node.type == "assignment_statement":
        targets = items(field(node, "left"))
    elif node.type in ("inc_statement", "dec_statement"):
        targets = items(node)[:1]
    else:
        return []
    bases = [_base(target) if target.type == "index_expression" else target for target in targets]
    return [text_of(base) for base in bases if base is not None]


def _base(node: Node) -> Node | None:
    while node.type == "index_expression":
        node = field(node, "operand")
    return node if node.type == "identifier" else None


def _contains(outer: Node, inner: Node) -> bool:
    return outer.start_byte <= inner.start_byte and inner.end_byte <= outer.end_byte


def _is_sum(node: Node) -> bool:
    if node.type in ("inc_statement", "dec_statement"):
        return True
    return text_of(field(node, "operator")) in ("+=", "-=")


def _is_append(node: Node, name: str) -> bool:
    if node.type != "assignment_statement" or text_of(field(node, "operator")) != "=":
        return False
    call = items(field(node, "right"))[0]
    if call.type != "call_expression" or text_of(field(call, "function")) != "append":
        return False
    arguments = items(field(call, "arguments"))
    return len(arguments) == 2 and text_of(arguments[0]) == name


def _is_flag(node: Node) -> bool:
    """Return whether the statement assigns a constant."""
    if node.type != "assignment_statement" or text_of(field(node, "operator")) != "=":
        return False
    value = items(field(node, "right"))[0]
    return value.type in (
        "true",
        "false",
        "int_literal",
        "float_literal",
        "interpreted_string_literal",
    )
