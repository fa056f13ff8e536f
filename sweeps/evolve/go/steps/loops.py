"""Loops of Go as passes under masks, and what leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.evolve.go.nodes import field, items, text_of, walk
from sweeps.evolve.go.steps.statements import StepStatements
from sweeps.evolve.go.steps.types import Variable
from sweeps.evolve.stepping.router import MOST_PASSES

if TYPE_CHECKING:
    from tree_sitter import Node


_DECISIONS = ("NewRoutingDecision", "NewRoutingDecisionWithScores")


class StepLoops(StepStatements):
    """Translate loops, what leaves them, and what leaves a function."""

    def do_labeled_statement(self, node: Node) -> None:
        """Translate a loop or switch with a label."""
        parts = [one for one in node.named_children if one.type not in ("label_name", "comment")]
        label = text_of(field(node, "label"))
        if parts and parts[0].type == "for_statement":
            self.do_for_statement(parts[0], label)
        elif parts and parts[0].type == "expression_switch_statement":
            self.do_expression_switch_statement(parts[0], label)
        else:
            self.program.refuse(node, "a label for goto is not read")

    def do_break_statement(self, node: Node) -> None:
        """Translate `break`."""
        self._leave(node, "")

    def do_continue_statement(self, node: Node) -> None:
        """Translate `continue`."""
        self._leave(node, " pass")

    def _leave(self, node: Node, suffix: str) -> None:
        self.tell(node)
        label = text_of(node.named_children[0]) if node.named_children else ""
        for own, name, is_switch in reversed(self.loops):
            if own == label if label else not (suffix and is_switch):
                self.emit(f"go.leave({name + suffix!r})")
                return
        self.program.refuse(node, "this leaves no loop")

    def do_return_statement(self, node: Node) -> None:
        """Translate `return …`."""
        self.tell(node)
        given = items(node.named_children[0]) if node.named_children else []
        kinds = self.results[-1]
        if kinds == ["decision"]:
            self.emit(f"go.returns({self.value(self._target(node, given[0]))})")
            return
        owner = node
        while owner.type not in ("function_declaration", "method_declaration", "func_literal"):
            assert owner.parent is not None
            owner = owner.parent
        if not given:
            given = [one for one, _ in self.named_results(owner)]
        if len(given) == 1 and len(kinds) > 1:
            self.emit(f"go.returns(*{self.value(given[0])})")
            return
        codes = [f"{kind}({self.value(one)})" for one, kind in zip(given, kinds, strict=True)]
        self.emit(f"go.returns({', '.join(codes)})")

    def _target(self, node: Node, given: Node) -> Node:
        """Return what a decision names."""
        found: Node | None = None
        name = (
            text_of(field(given, "function")).removeprefix("sim.")
            if given.type == "call_expression"
            else ""
        )
        if name in _DECISIONS:
            found = items(field(given, "arguments"))[0]
        elif (
            given.type == "composite_literal"
            and text_of(field(given, "type")).removeprefix("sim.") == "RoutingDecision"
        ):
            for one in items(field(given, "body")):
                if one.type == "keyed_element":
                    key, value = (items(part)[0] for part in items(one))
                    found = value if text_of(key) == "TargetInstance" else found
        if found is None:
            self.program.refuse(node, "a decision that names no instance is not read")
        self.targets.append(found)
        return found

    # --- loops --------------------------------------------------------------------------------------

    def do_for_statement(self, node: Node, label: str = "") -> None:
        """Translate `for … { … }`."""
        head = next(
            (one for one in node.named_children if one.type in ("range_clause", "for_clause")), None
        )
        name = self.fresh(f"loop_{self.program.line(node)}")
        if head is not None and head.type == "range_clause":
            self._ranged(node, head, name, label)
            return
        self.tell(node, whole=False)
        condition = None
        with self.scope():
            post = None
            if head is not None:
                first, condition, post = (
                    head.child_by_field_name(one) for one in ("initializer", "condition", "update")
                )
                if first is not None:
                    self.run([first])
            else:
                body = field(node, "body")
                condition = next(
                    (one for one in node.named_children if one != body and one.type != "comment"),
                    None,
                )
            self._stepped(node, (condition, post), name, label)

    def _stepped(
        self, node: Node, head: tuple[Node | None, Node | None], name: str, label: str
    ) -> None:
        condition, post = head
        body = field(node, "body")
        most = self.bound_of(condition, body) if condition is not None else "None"
        sure = ""
        if most == "None":
            most, sure = (
                self.guess_of(condition, body) if condition is not None else "None",
                ", is_sure=False",
            )
            self.program.note(
                f"The loop of line {self.program.line(node)} is followed for {MOST_PASSES} passes at most; a decision "
                "that takes more is none, and ends the run"
            )
        self.emit(f"for _ in go.loop({most}, {name!r}{sure}):")
        self.indent += 1
        self.emit(f"if not go.goes({'True' if condition is None else self.value(condition)}):")
        self.emit("    break")
        self.loops.append((label, name, False))
        self.do_block(body)
        self.loops.pop()
        self.emit("go.end()")
        if post is not None:
            changed = set(self.changed_in([body]))
            self.unmasked = {one for one in self.changed_in([post]) if one not in changed}
            self.run([post])
            self.unmasked = set()
        self.indent -= 1

    def _ranged(self, node: Node, head: Node, name: str, label: str) -> None:
        left, right = head.child_by_field_name("left"), field(head, "right")
        body = field(node, "body")
        if (
            right.type == "selector_expression"
            and self.kind_at(field(right, "operand")) == "router"
            and (text_of(field(right, "field")) == "observers")
        ):
            self._observers(node, body)
            return
        self.tell(node, whole=False)
        targets = items(left) if left is not None else []
        is_new = left is None or any(text_of(one) == ":=" for one in head.children)
        over = self.fresh(f"over_{self.program.line(node)}")
        self.declared.add(over)
        free = self.is_free(body, text_of(targets[0]) if targets else "")
        code = self.value(right)
        if not free and self.kind_at(right) == "map":
            code = f"in_order({code}, is_told=True)"
            self.program.note(
                f"Line {self.program.line(node)} goes over a map, whose keys Go takes in a random order, anew in "
                "every run; here they come as they were first set. Where the order counts, Go's own runs differ"
            )
        elif not free:
            code = f"in_order({code})"
        self.emit(f"{over} = {code}")
        with self.scope():
            names = [
                self.fresh(text_of(one) if text_of(one) != "_" else "unused") for one in targets
            ]
            names += ["_"] * (2 - len(names))
            self.declared |= {*names}
            self.emit(f"for {', '.join(names)} in go.each({over}, {name!r}):")
            self.indent += 1
            for one, python in zip(targets, names, strict=False):
                if is_new:
                    self.scopes[-1][text_of(one)] = Variable(python)
                else:
                    self.assign(one, python)
            self.indent -= 1
            self.indent += 1
            self.loops.append((label, name, False))
            self.do_block(body)
            self.loops.pop()
            self.emit("pass")
            self.indent -= 1

    def _observers(self, node: Node, body: Node) -> None:
        early = [one for one in walk(self.program.route) if one.type == "return_statement"
                 and one.start_byte < node.start_byte and self.owner(one) == self.program.route]  # fmt: skip
        if early:
            self.program.refuse(
                node,
                "a return before the observers are told is not read: prefix-affinity would miss the request",
            )
        self.tell(node)
        calls = [one for one in walk(body) if one.type == "call_expression"]
        self.told += [items(field(one, "arguments"))[-1] for one in calls]
