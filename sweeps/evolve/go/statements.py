"""Statements of Go as statements of Python."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from sweeps.evolve.go.nodes import (
    DTYPES,
    INSTANCE,
    LIST,
    NUMBERS,
    GoValue,
    array,
    field,
    items,
    parameters_of,
    sorted_in,
    statements_of,
    text_of,
    typed,
    walk,
)
from sweeps.evolve.go.variables import Variables

if TYPE_CHECKING:
    from tree_sitter import Node


_ASCENDING = ("sort.Ints", "sort.Float64s", "sort.Strings", "slices.Sort")
_BY_FUNCTION = {  # up to how many elements Go inserts them one by one; whether the elements are compared, not places
    "sort.Slice": (12, False), "sort.SliceStable": (20, False),
    "slices.SortFunc": (12, True), "slices.SortStableFunc": (20, True),
}  # fmt: skip


SWITCH = "switch_"  # begins the name of a switch that `break` leaves, as those of loops are numbers


class Statements(Variables):
    """Translate statements but for loops."""

    # --- statements -------------------------------------------------------------------------------

    def run(self, statements: list[Node]) -> None:
        """Translate statements in their order."""
        for node in statements:
            method = getattr(self, f"do_{node.type}", None)
            if method is None:
                self.refuse(node, "this statement is not read")
            else:
                method(node)

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
            to, source = (self.value(one) for one in items(field(call, "arguments")))
            if to.axes != source.axes or to.is_alias or to.kind != source.kind or to.is_list:
                self.refuse(node, "this copy is not read")
            self.emit(f"{to.code} = {self.chosen(source.code, to.code)}")
        elif sorted_in(call):
            self.tell(node)
            self._sort(call, name)
        elif name == "panic":
            return  # a program that panics ends; what it would have computed is never seen
        else:
            self.refuse(node, "this call is not read")

    def _sort(self, node: Node, name: str) -> None:
        """Translate `sort.Slice(slice, less)` and the like; several slices are the fields of structs."""
        slices, given = sorted_in(node), items(field(node, "arguments"))
        owners = [self._own(one) for one in slices]
        if any(not self._is_sortable(one) for one in owners):
            self.refuse(node, "this is not sorted here; sort a slice of numbers of snapshots")
        first, function = owners[0], given[len(slices) :]
        count = f"{first.code}.count" if first.is_list else "go.count"
        vector = f"{first.code}.values" if first.is_list else first.code
        mask = self.mask or "True"
        if name in _ASCENDING and len(slices) == 1 and not function:
            rank = f"go.text_rank({vector})" if first.kind == "id" else vector
            code = f"ascending({rank}, {count}, {mask})"
        elif name in _BY_FUNCTION and len(function) == 1:
            code = self._order(node, name, slices, owners, function[0], (vector, count, mask))
        else:
            self.refuse(node, "this sort is not read")
        order = self.fresh(f"order_{self.program.line(node)}")
        self.emit(f"{order} = {code}")
        for one in owners:
            self.emit(
                f"{one.code} = {one.code}" + (f".take({order})" if one.is_list else f"[{order}]")
            )

    def _is_sortable(self, owner: GoValue) -> bool:
        is_one = owner.axes in ((LIST,), (INSTANCE,)) and not owner.is_map and not owner.is_alias
        return is_one and owner.kind in DTYPES

    def _order(
        self,
        node: Node,
        name: str,
        slices: list[Node],
        owners: list[GoValue],
        function: Node,
        of: tuple[str, str, str],
    ) -> str:
        """Return the code of the order into which a comparison puts slices."""
        vector, count, mask = of
        most, has_elements = _BY_FUNCTION[name]
        if has_elements:
            pairs = [(f"first_{at_}", f"second_{at_}", one.kind) for at_, one in enumerate(owners)]
            values = [GoValue(one, kind) for one, _, kind in pairs] + [
                GoValue(two, kind) for _, two, kind in pairs
            ]
            answer = self.less(node, function, values)
            code = f"(({answer.code}) < 0)"
            for one, two, owner in zip(
                (p[0] for p in pairs), (p[1] for p in pairs), owners, strict=True
            ):
                at_ = f"{owner.code}.at" if owner.is_list else f"{owner.code}.__getitem__"
                code = re.sub(
                    rf"\b{one}\b", f"{at_}(first)", re.sub(rf"\b{two}\b", f"{at_}(second)", code)
                )
        else:
            self._check_less(function, [text_of(one) for one in slices])
            places = [GoValue("first", "int"), GoValue("second", "int")]
            code = self.less(node, function, places).code
        return f"order_of(lambda first, second: {code}, {vector}.shape[0], {count}, {mask}, {most})"

    def _check_less(self, function: Node, slices: list[str]) -> None:
        """Refuse a comparison that uses its places for anything but the slice that is sorted."""
        if function.type != "func_literal":
            self.refuse(function, "write the comparison where the sort is")
        places, _ = parameters_of(function)
        for one in walk(field(function, "body")):
            if one.type != "identifier" or text_of(one) not in (*places, *slices):
                continue
            above = one.parent
            is_element = (
                above is not None
                and above.type == "index_expression"
                and text_of(field(above, "operand")) in slices
                and text_of(field(above, "index")) in places
            )
            if not is_element:
                self.refuse(
                    above or one, "the comparison's places may only index the slice that is sorted"
                )

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
            taken, other = field(node, "consequence"), node.child_by_field_name("alternative")
            if _only_panics(taken) and other is None:
                return
            name = self.fresh(f"is_{self.program.line(node)}")
            self.emit(f"{name} = {array(condition)}")
            self._branch(node, name, taken, "if")
            if other is not None:
                if other.type == "block":
                    self._branch(other, f"~{name}", other, "else")
                else:
                    with self.block(self.under(other, f"~{name}", "else")):
                        self.do_if_statement(other)

    def _branch(self, node: Node, condition: str, taken: Node, word: str) -> None:
        mask = self.under(node, condition, word) if self.mask else condition
        with self.block(mask):
            self.run(statements_of(taken))

    def do_expression_switch_statement(self, node: Node) -> None:
        """Translate `switch … { case …: … default: … }`."""
        self.tell(node, whole=False)
        name = ""
        if any(
            one.type == "break_statement" for one in walk(node)
        ):  # some of them may leave a loop
            name = f"{SWITCH}{self.fresh(f'stop_{SWITCH}{self.program.line(node)}').rpartition(SWITCH)[2]}"
            self.emit(f"stop_{name} = jnp.bool_(False)")
        with self.block(self.mask, loop=name):
            if node.child_by_field_name("initializer") is not None:
                self.do_short_var_declaration(field(node, "initializer"), is_told=False)
            given = node.child_by_field_name("value")
            value = self.value(given) if given is not None else None
            before = self.fresh(f"before_{self.program.line(node)}")
            self.emit(f"{before} = jnp.bool_(False)")
            cases = [
                one
                for one in node.named_children
                if one.type in ("expression_case", "default_case")
            ]
            for case in [one for one in cases if one.type == "expression_case"] + [
                one for one in cases if one.type == "default_case"
            ]:
                self._case(case, value, before)

    def _case(self, case: Node, value: GoValue | None, before: str) -> None:
        bad = next((one for one in walk(case) if one.type == "fallthrough_statement"), None)
        if bad is not None:
            self.refuse(bad, "not read inside switch")
        self.tell(case, whole=False)
        condition = f"~{before}"
        if case.type == "expression_case":
            codes = []
            for one in items(field(case, "value")):
                met = (
                    self.condition(one)
                    if value is None
                    else self.operation(one, "==", value, self.value(one))
                )
                codes.append(f"({array(met)})")
            is_met = self.fresh(f"is_{self.program.line(case)}")
            self.emit(f"{is_met} = ({' | '.join(codes)}) & ~{before}")
            self.emit(f"{before} = {before} | {is_met}")
            condition = is_met
        shown = [one for one in case.named_children if one.type == "statement_list"]
        mask = (
            self.under(case, condition, "case")
            if self.mask or case.type == "default_case"
            else condition
        )
        with self.block(mask):
            self.run([one for part in shown for one in statements_of(part)])

    def do_return_statement(self, node: Node) -> None:
        """Translate `return …`; what comes back is kept until the end if there are several returns."""
        self.tell(node)
        given = items(node.named_children[0]) if node.named_children else self.named_results()
        values = [self.result(one) for one in given]
        kinds = self.result_kinds()
        if len(kinds) == len(values):
            values = [
                typed(value, kind) if value.is_untyped and value.kind in NUMBERS else value
                for value, kind in zip(values, kinds, strict=True)
            ]
        if not self.returned:
            self.returned = [
                replace(value, code=f"answer_{place}") for place, value in enumerate(values)
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
        declared = self.root.child_by_field_name("result")
        if declared is None or self.root == self.program.route:
            return []
        parts = items(declared) if declared.type == "parameter_list" else [declared]
        return [
            self.type_of(part.child_by_field_name("type") or part)[0]
            for part in parts
            for _ in part.children_by_field_name("name") or (part,)
        ]

    def named_results(self) -> list[Node]:
        """Return the names of the function's results, if they have some."""
        declared = self.root.child_by_field_name("result")
        if declared is None or declared.type != "parameter_list":
            return []
        return [name for part in items(declared) for name in part.children_by_field_name("name")]

    def result(self, node: Node) -> GoValue:
        """Translate one result of a return."""
        value = self.value(node)
        return value


def _only_panics(block: Node) -> bool:
    statements = statements_of(block)
    return len(statements) == 1 and text_of(statements[0]).startswith("panic(")
