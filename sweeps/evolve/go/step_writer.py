"""Translate a Go routing function statement by statement to Python that JAX traces, where vectors do not suffice.

`steps_of` translates what the translation to vectors refuses: labels, pointers, closures that change outside variables,
slices of slices, maps with any key. Each statement becomes a Python statement under a mask; see `stepping`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.evolve.go.source import (
    DECISIONS,
    GoProgram,
    field,
    items,
    names_of,
    owner_of,
    parameters_of,
    receiver_of,
    results_of,
    statements_of,
    text_of,
    walk,
)
from sweeps.evolve.go.step_statements import StepStatements
from sweeps.evolve.go.step_types import Variable
from sweeps.evolve.go.writer import head_of
from sweeps.evolve.stepping.router import MOST_PASSES

if TYPE_CHECKING:
    from tree_sitter import Node


OF_BLIS = ("RoutingSnapshot", "RoutingDecision", "Request", "RouterState", "ScorerConfig")
EFFECTIVE_LOAD = ("RoutingSnapshot", "EffectiveLoad")


class StepWriter(StepStatements):
    """Translate loops, `break`, `continue` and `return`; write a program's functions and file."""

    def do_labeled_statement(self, node: Node) -> None:
        """Translate a loop or switch with a label."""
        parts = [part for part in node.named_children if part.type not in ("label_name", "comment")]
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
        for loop_label, name, is_switch in reversed(self.loops):
            if loop_label == label if label else not (suffix and is_switch):
                self.emit(f"go.leave({name + suffix!r})")
                return
        self.program.refuse(node, "this leaves no loop")

    def do_return_statement(self, node: Node) -> None:
        """Translate `return …`."""
        self.tell(node)
        values = items(node.named_children[0]) if node.named_children else []
        kinds = self.results[-1]
        if kinds == ["decision"]:
            self.emit(f"go.returns({self.value(self.decided(values[0]))})")
            return
        if not values:
            values = [name for name, _ in results_of(owner_of(node)) if name is not None]
        if len(values) == 1 and len(kinds) > 1:
            self.emit(f"go.returns(*{self.value(values[0])})")
            return
        codes = [f"{kind}({self.value(value)})" for value, kind in zip(values, kinds, strict=True)]
        self.emit(f"go.returns({', '.join(codes)})")

    # --- loops --------------------------------------------------------------------------------------

    def do_for_statement(self, node: Node, label: str = "") -> None:
        """Translate `for … { … }`."""
        head = next(
            (
                child
                for child in node.named_children
                if child.type in ("range_clause", "for_clause")
            ),
            None,
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
                    head.child_by_field_name(part)
                    for part in ("initializer", "condition", "update")
                )
                if first is not None:
                    self.run([first])
            else:
                body = field(node, "body")
                condition = next(
                    (
                        child
                        for child in node.named_children
                        if child != body and child.type != "comment"
                    ),
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
            self.unmasked = {name for name in self.changed_in([post]) if name not in changed}
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
            self.tell_observers(self.program.route, node)
            return
        self.tell(node, whole=False)
        targets = items(left) if left is not None else []
        is_new = left is None or any(text_of(part) == ":=" for part in head.children)
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
                self.fresh(text_of(target) if text_of(target) != "_" else "unused")
                for target in targets
            ]
            names += ["_"] * (2 - len(names))
            self.declared |= {*names}
            self.emit(f"for {', '.join(names)} in go.each({over}, {name!r}):")
            self.indent += 1
            for target, python in zip(targets, names, strict=False):
                if is_new:
                    self.scopes[-1][text_of(target)] = Variable(python)
                else:
                    self.assign(target, python)
            self.indent -= 1
            self.indent += 1
            self.loops.append((label, name, False))
            self.do_block(body)
            self.loops.pop()
            self.emit("pass")
            self.indent -= 1

    # --- functions and the file ---------------------------------------------------------------------

    def write(self) -> list[str]:
        """Return the Python lines of the whole program, without the file's head."""
        used = self.used_names()
        for name, spec in self.specs.items():
            if (
                name in used
                and name not in (*OF_BLIS, self.router)
                and spec.child_by_field_name("type_parameters") is None
            ):
                self.plain_type(name)
        for spec in self.package_variables():
            names = [name for name in spec.children_by_field_name("name") if name.is_named]
            if any(text_of(name) in used - {"_"} for name in names):
                self.tell(spec)
                self._var_spec(spec, wrap="kept({})")
                self.package_names |= {self.scopes[0][text_of(name)].code for name in names}
        for name in self.functions:
            self.scopes[0][name] = Variable(self.fresh(name), "function", self.functions[name])
        for name, node in self.functions.items():
            if name in used and name not in DECISIONS:
                self.function(node, self.scopes[0][name].code)
        for (owner, name), node in self.methods.items():
            if name not in used or node == self.program.route or (owner, name) == EFFECTIVE_LOAD:
                continue
            is_number = owner in self.types and self.types[owner] not in self.struct_codes
            if is_number or owner in (self.router, "RoutingSnapshot"):
                self.function(node, self.method_code(node, name))
            elif owner in self.types:
                made = self.fresh(f"{owner}_{name}")
                self.function(node, made)
                kind = text_of(field(items(field(node, "receiver"))[0], "type"))
                self.emit(f"{self.types[owner]}.methods[{name!r}] = {made}, {kind.startswith('*')}")
                self.emit("")
                self.emit("")
        self._route()
        return self.lines

    def used_names(self) -> set[str]:
        """Return the names that the routing function uses, directly or through other functions."""
        todo, seen = [self.program.route], set[str]()
        by_name: dict[str, list[Node]] = {}
        for name, node in self.functions.items():
            by_name.setdefault(name, []).append(node)
        for (_, name), node in self.methods.items():
            by_name.setdefault(name, []).append(node)
        for spec in self.package_variables():
            for part in spec.children_by_field_name("name"):
                by_name.setdefault(text_of(part), []).append(spec)
        for decision in DECISIONS:
            by_name.pop(decision, None)
        while todo:
            for part in walk(todo.pop()):
                name = text_of(part) if part.type.endswith("identifier") else ""
                if name and name not in seen:
                    seen.add(name)
                    todo += [node for node in by_name.get(name, []) if node != self.program.route]
        return seen

    def function(self, node: Node, name: str, is_closure: bool = False) -> None:
        """Write a function, a method or a closure."""
        names, kinds = self.parameters(node)
        with self.scope():
            python = []
            receiver = (
                items(field(node, "receiver"))[0] if node.type == "method_declaration" else None
            )
            if receiver is not None:
                receivers = names_of(receiver) or ["_"]
                names, kinds = [*receivers, *names], [field(receiver, "type"), *kinds]
            for parameter, kind in zip(names, kinds, strict=True):
                python.append(self.fresh(parameter if parameter != "_" else "unused"))
                self.scopes[-1][parameter] = Variable(python[-1], self.kind_of(kind))
            if receiver is not None and self.kind_of(field(receiver, "type")) == "router":
                python = python[1:]
                self.scopes[-1][names[0]] = Variable("go", "router")
                names, kinds = names[1:], kinds[1:]
            first = [] if is_closure else ["go"]
            self.emit(f"def {name}({', '.join([*first, *python])}):")
            start, inner = len(self.lines), (self.declared, self.assigned)
            self.declared, self.assigned = {*python}, set()
            outer_loops, self.loops = self.loops, []
            self.indent += 1
            for parameter, kind in zip(python, kinds, strict=True):
                wanted = self.type_code(kind) if kind is not None else ""
                if wanted in self.numbers:
                    self.emit(f"{parameter} = {wanted}({parameter})")
                elif wanted in self.struct_codes or wanted.startswith("Container('array'"):
                    self.emit(f"{parameter} = copied({parameter})")
            self.emit("go.enter()")
            self.results.append(self.result_types(node))
            self._body(node)
            self.emit("return go.result()")
            self.results.pop()
            self.indent -= 1
            self._say_nonlocal(start)
            (self.declared, self.assigned), self.loops = inner, outer_loops
            if not is_closure:
                self.emit("")
                self.emit("")

    def _say_nonlocal(self, start: int) -> None:
        """Insert the `nonlocal` line for the outer variables that a function assigns."""
        outside = sorted(self.assigned - self.declared)
        if outside:
            self.lines.insert(start, "    " * (self.indent + 1) + f"nonlocal {', '.join(outside)}")

    def _body(self, node: Node) -> None:
        for name, kind in results_of(node):
            if name is not None:
                self.declare(name, f"{self.type_code(kind)}.zero()")
        self.run(statements_of(field(node, "body")))
        ends = statements_of(field(node, "body"))[-1:]
        if not self.results[-1] and not (ends and ends[0].type == "return_statement"):
            self.emit("go.returns()")

    def _route(self) -> None:
        route = self.program.route
        (receiver,), (request, state) = receiver_of(route) or ["_"], parameters_of(route)[0]
        draws = any(
            text_of(field(call, "function")).endswith((".Intn", ".Int31n", ".Perm"))
            for call in walk(self.root) if call.type == "call_expression"
        )  # fmt: skip
        self.draws = draws
        with self.scope():
            self.scopes[-1] |= {
                receiver: Variable("go", "router"), request: Variable("go", "request"),
                state: Variable("go", "state"), "snapshots": Variable("go.snapshots", "snapshots"),
            }  # fmt: skip
            first = len(self.lines)
            self.emit("def route(params, state, context):")
            self.indent += 1
            self.emit(f'"""Choose the instance that {self.program.name} chooses."""')
            self.emit("go = SteppingRouter(context, state)")
            self.declared = {"go"}
            self.results.append(["decision"])
            with self.scope():
                self.run(statements_of(field(route, "body")))
            self.results.pop()
            self.emit("return go.chosen_instance(go.result())")
            self.indent -= 1
            self.lines.insert(first, self._decorator())
        self.check_observers()

    def _decorator(self) -> str:
        """Return the decorator of the policy: the numbers that the router keeps, and whether the router draws."""
        start = "none_used" if self.draws else ""
        if self.kept:
            pairs = ", ".join(f"{name}={code}" for name, code in self.kept.items())
            start = f"keeping({self.draws}, {pairs})"
        parts = [f"start={start}"] * bool(start) + ["is_random=True"] * self.draws
        return f"@routing_policy({', '.join(parts)})"


def steps_of(program: GoProgram, module: str) -> str:
    """Return the Python file of a policy `route` that decides as the program does, statement by statement.

    Raises:
        ConfigError: the program uses a part of Go that is not supported; the sentence says which part and where.
    """
    writer = StepWriter(program)
    lines = writer.write()
    body = (
        "\n".join([*writer.type_lines, "" if not writer.type_lines else "\n", *lines]).strip("\n")
        + "\n"
    )
    head = head_of(
        program, module, writer.imports(body), form=", statement by statement",
        reads_scorers="'scorers'" in body or "'weights'" in body,
    )  # fmt: skip
    return head + body
