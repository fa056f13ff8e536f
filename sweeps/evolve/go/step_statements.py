"""Translate Go's declarations, assignments and branches to statements that take effect under a mask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sweeps.evolve.go.source import field, items, only_panics, statements_of, text_of, walk
from sweeps.evolve.go.step_calls import StepCalls
from sweeps.evolve.go.step_types import Variable

if TYPE_CHECKING:
    from tree_sitter import Node

    from sweeps.evolve.go.source import GoProgram


_SILENT = ("fmt.Print", "log.Print", "logrus.", "log.Debug", "slog.")


class StepStatements(StepCalls):
    """Translate declarations, assignments and branches."""

    def __init__(self, program: GoProgram) -> None:
        super().__init__(program)
        self.loops: list[tuple[str, str, bool]] = []  # label, name, whether it is a switch
        self.results: list[list[str]] = []  # types of what the functions around return

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Translate the statements of the `with` block in a scope of their own."""
        self.scopes.append({})
        yield
        self.scopes.pop()

    # --- statements ---------------------------------------------------------------------------------

    def do_block(self, node: Node) -> None:
        """Translate a block."""
        with self.scope():
            self.run(statements_of(node))

    def do_empty_statement(self, node: Node) -> None:
        """Skip an empty statement."""

    def do_type_declaration(self, node: Node) -> None:
        """Declare types; their code is written before the function."""
        for spec in (part for part in items(node) if part.type in ("type_spec", "type_alias")):
            self.local_type(spec)

    def do_expression_statement(self, node: Node) -> None:
        """Translate a call; drop calls that only check or log."""
        call = items(node)[0]
        name = text_of(field(call, "function")) if call.type == "call_expression" else ""
        if name == "panic" or name.startswith(_SILENT):
            return  # a program that panics ends; what it would have computed is never seen
        self.tell(node)
        self.emit(self.value(call))

    def do_if_statement(self, node: Node) -> None:
        """Translate `if …; … { … } else …`."""
        consequence, other = field(node, "consequence"), node.child_by_field_name("alternative")
        self.tell(node, whole=False)
        with self.scope():
            first = node.child_by_field_name("initializer")
            if first is not None:
                self.run([first])
            if other is None and only_panics(consequence):
                return
            if other is None and self._asks_for_none(field(node, "condition")):
                return  # there is always an instance
            name = self.fresh(f"is_{self.program.line(node)}")
            self.declared.add(name)
            self.emit(f"{name} = go.test({self.value(field(node, 'condition'))})")
            self._branch(name, lambda: self.do_block(consequence))
            if other is not None:
                self._branch(f"no({name})", lambda: self.run([other]))

    def _asks_for_none(self, condition: Node) -> bool:
        """Return whether a condition asks if there are no snapshots."""
        sides = [condition.child_by_field_name(name) for name in ("left", "operator", "right")]
        if [side is None or text_of(side) for side in sides[1:]] != ["==", "0"] or sides[0] is None:
            return False
        if sides[0].type != "call_expression" or text_of(field(sides[0], "function")) != "len":
            return False
        (of,) = items(field(sides[0], "arguments"))
        return self.kind_at(of) == "snapshots" or self.value(of) == "go.snapshots"

    def _branch(self, condition: str, inside: object) -> None:
        self.emit(f"if go.when({condition}):")
        self.indent += 1
        inside()  # type: ignore[operator]
        self.emit("go.end()")
        self.indent -= 1

    def do_expression_switch_statement(self, node: Node, label: str = "") -> None:
        """Translate `switch … { case …: … default: … }`."""
        self.tell(node, whole=False)
        line = self.program.line(node)
        name = self.fresh(f"switch_{line}")
        with self.scope():
            if node.child_by_field_name("initializer") is not None:
                self.run([field(node, "initializer")])
            subject = node.child_by_field_name("value")
            tag = self.fresh(f"tag_{line}")
            if subject is not None:
                self.emit(f"{tag} = {self.copied(subject)}")
                self.declared.add(tag)
            self.emit(f"go.begin({name!r})")
            cases = [
                child
                for child in node.named_children
                if child.type in ("expression_case", "default_case")
            ]
            met = self._conditions(cases, tag if subject is not None else "")
            self.loops.append((label, name, True))
            falls = ""
            for case, condition in zip(cases, met, strict=True):
                self.tell(case, whole=False)
                if falls:
                    self.emit(f"{condition} = any_mask({condition}, {falls})")
                inner = [statement for part in case.named_children if part.type == "statement_list"
                         for statement in statements_of(part)]  # fmt: skip
                is_falling = bool(inner) and inner[-1].type == "fallthrough_statement"
                falls = condition if is_falling else ""
                with self.scope():
                    body = inner[:-1] if is_falling else inner
                    self._branch(condition, lambda body=body: self.run(body))
            self.loops.pop()
            self.emit("go.end()")

    def _conditions(self, cases: list[Node], tag: str) -> list[str]:
        """Assign each case's condition to a variable, false where an earlier case holds; return the variable names."""
        before, names = "False", []
        for case in cases:
            names.append(self.fresh(f"case_{self.program.line(case)}"))
            self.declared.add(names[-1])
            if case.type == "default_case":
                continue
            codes = [self.value(choice) for choice in items(field(case, "value"))]
            tests = [f"same({tag}, {code})" if tag else f"go.test({code})" for code in codes]
            code = tests[0]
            for test in tests[1:]:
                code = f"any_mask({code}, {test})"
            self.emit(f"{names[-1]} = {code}" if before == "False" else
                      f"{names[-1]} = both_masks({code}, no({before}))")  # fmt: skip
            before = names[-1] if before == "False" else f"any_mask({before}, {names[-1]})"
        for case, name in zip(cases, names, strict=True):
            if case.type == "default_case":
                self.emit(f"{name} = no({before})")
        return names

    # --- declarations and assignments -----------------------------------------------------------------

    def do_short_var_declaration(self, node: Node) -> None:
        """Translate `a, b := …`."""
        self.tell(node)
        names = items(field(node, "left"))
        for name, code in zip(
            names, self._values(items(field(node, "right")), len(names)), strict=True
        ):
            if text_of(name) in self.scopes[-1]:
                self.assign(name, code)
            else:
                self.declare(name, code)

    def _values(self, right: list[Node], wanted: int) -> list[str]:
        if len(right) == wanted:
            codes = [self.copied(value, is_declared=True) for value in right]
            if wanted == 1:
                return codes
        elif right[0].type == "index_expression":
            codes = [
                f"found({self.value(field(right[0], 'operand'))}, {self.value(field(right[0], 'index'))})"
            ]
        else:
            codes = [self.value(right[0])]
        names = [self.fresh("new") for _ in range(wanted)]
        self.declared |= {*names}
        self.emit(f"{', '.join(names)} = {', '.join(codes)}")
        return names

    def declare(self, name: Node, code: str, kind: str = "") -> None:
        """Declare a variable with a value."""
        text = text_of(name)
        if text == "_":
            self.emit(code)
            return
        python = self.fresh(text)
        self.declared.add(python)
        self.emit(f"{python} = {code}")
        self.scopes[-1][text] = Variable(python, kind or self.kind_of_code(code), self.literal)
        self.literal = None

    def do_var_declaration(self, node: Node) -> None:
        """Translate `var a T = …`."""
        self.tell(node)
        for spec in (part for part in walk(node) if part.type == "var_spec"):
            self._var_spec(spec)

    def _var_spec(self, spec: Node, wrap: str = "{}") -> None:
        names = [name for name in spec.children_by_field_name("name") if name.is_named]
        right, kind = spec.child_by_field_name("value"), spec.child_by_field_name("type")
        wanted = self.type_code(kind) if kind is not None else ""
        if right is None:
            codes = [f"{wanted}.zero()" for _ in names]
        else:
            values = self._values(items(right), len(names))
            codes = [f"{wanted}({value})" if wanted else value for value in values]
        for name, code in zip(names, codes, strict=True):
            self.declare(name, wrap.format(code))

    def do_const_declaration(self, node: Node) -> None:
        """Record constants; a constant's value is written wherever its name is used."""
        self.tell(node)
        self.scopes[-1] |= self.constants_of(node)

    def do_assignment_statement(self, node: Node) -> None:
        """Translate `a, b = …` and `a += …`."""
        self.tell(node)
        targets, sign = items(field(node, "left")), text_of(field(node, "operator"))
        right = items(field(node, "right"))
        if sign != "=":
            self.assign(targets[0], self.operation(node, sign[:-1], targets[0], right[0]))
            return
        if len(targets) == 1 and self.appends_over(targets[0], right[0]):
            old, *more = items(field(right[0], "arguments"))
            if more[-1].type == "variadic_argument":
                code = f"append_all(go, {self.value(old)}, {self.value(items(more[-1])[0])}, is_over=True)"
            else:
                code = f"go.append({', '.join([f'{self.value(old)}.alone()', *map(self.value, more)])})"
            self.assign(targets[0], code)
            return
        codes = self._values(right, len(targets)) if len(targets) > 1 else [self.value(right[0])]
        for target, code in zip(targets, codes, strict=True):
            self.assign(target, code)

    def do_inc_statement(self, node: Node) -> None:
        """Translate `a++` and `a--`."""
        self.tell(node)
        function = "add" if node.type == "inc_statement" else "sub"
        target = items(node)[0]
        self.assign(target, f"{function}({self.value(target)}, 1)")

    do_dec_statement = do_inc_statement

    def assign(self, target: Node, code: str) -> None:
        """Translate `target = value`."""
        while target.type == "parenthesized_expression":
            target = items(target)[0]
        if target.type == "index_expression":
            self.emit(
                f"go.put({self.place(field(target, 'operand'))}, {self.value(field(target, 'index'))}, {code})"
            )
        elif target.type == "selector_expression":
            if self.kind_at(field(target, "operand")) == "router":
                kept = self.value(target)
                if not kept.startswith("go.numbers["):
                    self.program.refuse(
                        target,
                        "an assignment to this is not read: it would be kept between requests",
                    )
                self.emit(f"{kept} = go.set({kept}, {code})")
                return
            self.emit(
                f"go.put_field({self.place(field(target, 'operand'))}, {text_of(field(target, 'field'))!r}, {code})"
            )
        elif target.type == "unary_expression":
            self.emit(f"go.store({self.value(field(target, 'operand'))}, {code})")
        elif text_of(target) == "_":
            self.emit(code)
        else:
            self._set(target, code)

    def _set(self, target: Node, code: str) -> None:
        variable = self.find(text_of(target))
        if variable is None or variable.kind in (
            "router",
            "request",
            "state",
            "function",
            "const",
            "snapshots",
        ):
            self.program.refuse(
                target, "an assignment to this is not read: it would be kept between requests"
            )
        if variable.code in self.package_names:
            self.program.refuse(
                target, "a variable of the package, which is kept between requests, is not assigned"
            )
        self.assigned.add(variable.code)
        is_free = text_of(target) in self.unmasked
        self.emit(
            f"{variable.code} = {code}"
            if is_free
            else f"{variable.code} = go.set({variable.code}, {code})"
        )
