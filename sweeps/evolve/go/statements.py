"""Statements of Go as statements of Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.evolve.go.source import field, items, results_of, statements_of, text_of, walk
from sweeps.evolve.go.variables import Variables
from sweeps.evolve.go.writer import NUMBERS, GoValue, array, typed

if TYPE_CHECKING:
    from tree_sitter import Node


SWITCH = "switch_"  # begins the name of a switch that `break` leaves, as those of loops are numbers


class Statements(Variables):
    """Translate statements but for loops."""

    # --- statements -------------------------------------------------------------------------------

    def do_block(self, node: Node) -> None:
        """Translate a block in a scope of its own."""
        with self.block(self.mask):
            self.run(statements_of(node))

    def do_expression_statement(self, node: Node) -> None:
        """Translate `copy(a, b)`, and leave out what only checks or tells."""
        call = items(node)[0]
        name = text_of(field(call, "function")) if call.type == "call_expression" else ""
        if name == "copy":
            self.tell(node)
            to, source = (self.value(argument) for argument in items(field(call, "arguments")))
            if to.axes != source.axes or to.is_alias or to.kind != source.kind or to.is_list:
                self.refuse(node, "this copy is not read")
            self.emit(f"{to.code} = {self.chosen(source.code, to.code)}")
        elif name == "panic":
            return  # a program that panics ends; what it would have computed is never seen
        else:
            self.refuse(node, "this call is not read")

    # --- branches ---------------------------------------------------------------------------------

    def do_if_statement(self, node: Node) -> None:
        """Translate `if …; … { … } else …`."""
        self.tell(node, whole=False)
        with self.block(self.mask):
            first = node.child_by_field_name("initializer")
            if first is not None:
                if first.type != "short_var_declaration":
                    self.refuse(first, "not read")
                self.do_short_var_declaration(first, is_told=False)
            condition = self.condition(field(node, "condition"))
            consequence, other = field(node, "consequence"), node.child_by_field_name("alternative")
            if _only_panics(consequence) and other is None:
                return
            name = self.fresh(f"is_{self.program.line(node)}")
            self.emit(f"{name} = {array(condition)}")
            self._branch(node, name, consequence, "if")
            if other is not None:
                if other.type == "block":
                    self._branch(other, f"~{name}", other, "else")
                else:
                    with self.block(self.under(other, f"~{name}", "else")):
                        self.do_if_statement(other)

    def _branch(self, node: Node, condition: str, body: Node, word: str) -> None:
        mask = self.under(node, condition, word) if self.mask else condition
        with self.block(mask):
            self.run(statements_of(body))

    def do_expression_switch_statement(self, node: Node) -> None:
        """Translate `switch … { case …: … default: … }`."""
        self.tell(node, whole=False)
        name = ""
        if any(
            part.type == "break_statement" for part in walk(node)
        ):  # some of them may leave a loop
            name = f"{SWITCH}{self.fresh(f'stop_{SWITCH}{self.program.line(node)}').rpartition(SWITCH)[2]}"
            self.emit(f"stop_{name} = jnp.bool_(False)")
        with self.block(self.mask, loop=name):
            if node.child_by_field_name("initializer") is not None:
                self.do_short_var_declaration(field(node, "initializer"), is_told=False)
            tag = node.child_by_field_name("value")
            value = self.value(tag) if tag is not None else None
            before = self.fresh(f"before_{self.program.line(node)}")
            self.emit(f"{before} = jnp.bool_(False)")
            cases = [
                child
                for child in node.named_children
                if child.type in ("expression_case", "default_case")
            ]
            for case in [case for case in cases if case.type == "expression_case"] + [
                case for case in cases if case.type == "default_case"
            ]:
                self._case(case, value, before)

    def _case(self, case: Node, value: GoValue | None, before: str) -> None:
        bad = next((part for part in walk(case) if part.type == "fallthrough_statement"), None)
        if bad is not None:
            self.refuse(bad, "not read inside switch")
        self.tell(case, whole=False)
        condition = f"~{before}"
        if case.type == "expression_case":
            codes = []
            for choice in items(field(case, "value")):
                met = (
                    self.condition(choice)
                    if value is None
                    else self.operation(choice, "==", value, self.value(choice))
                )
                codes.append(f"({array(met)})")
            is_met = self.fresh(f"is_{self.program.line(case)}")
            self.emit(f"{is_met} = ({' | '.join(codes)}) & ~{before}")
            self.emit(f"{before} = {before} | {is_met}")
            condition = is_met
        shown = [child for child in case.named_children if child.type == "statement_list"]
        mask = (
            self.under(case, condition, "case")
            if self.mask or case.type == "default_case"
            else condition
        )
        with self.block(mask):
            self.run([statement for part in shown for statement in statements_of(part)])

    def do_return_statement(self, node: Node) -> None:
        """Translate `return …`; what comes back is kept until the end if there are several returns."""
        self.tell(node)
        results = items(node.named_children[0]) if node.named_children else self.named_results()
        values = [self.result(result) for result in results]
        kinds = self.result_kinds()
        if len(kinds) == len(values):
            values = [
                typed(value, kind) if value.is_untyped and value.kind in NUMBERS else value
                for value, kind in zip(values, kinds, strict=True)
            ]
        if not self.returned:
            self.returned = [
                value.named(f"answer_{place}", keeps=False) for place, value in enumerate(values)
            ]
        if len(values) != len(self.returned):
            self.refuse(node, "another number of results is not read")
        for place, value in enumerate(values):
            wanted = self.returned[place]
            value = (
                self.fitting(node, value, wanted)
                if value.kind != wanted.kind or value.is_untyped
                else value
            )
            name = f"answer_{place}"
            if value.axes and self.mask:
                self.refuse(node, "a slice or map as one of several results is not read")
            self.emit(
                f"{name} = {self.chosen(array(value), name) if self.returns_early else array(value)}"
            )
        if self.returns_early:
            self.set_flag("done", "")

    def result_kinds(self) -> list[str]:
        """Return the kinds of what the function returns; none of the routing function."""
        results = results_of(self.root) if self.root != self.program.route else []
        return [self.type_of(kind)[0] for _, kind in results]

    def named_results(self) -> list[Node]:
        """Return the names of the function's results, if they have some."""
        return [name for name, _ in results_of(self.root) if name is not None]

    def result(self, node: Node) -> GoValue:
        """Translate one result of a return."""
        return self.value(node)


def _only_panics(block: Node) -> bool:
    statements = statements_of(block)
    return len(statements) == 1 and text_of(statements[0]).startswith("panic(")
