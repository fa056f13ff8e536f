"""Translate loops: over all instances at once where the order of passes does not matter, else one pass after another.

A loop over snapshots becomes one vector operation per statement if every outside variable is a sum, the best value
or a variable set with it, a flag, a growing slice, or an element of the pass's own instance, and nothing else in the
loop reads the variable. All other loops are unrolled, one pass for each instance that there may be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sweeps.evolve.go.claims import Claims, GoLoop, assignments, best_of, extreme_of
from sweeps.evolve.go.source import field, items, owner_of, statements_of, text_of, walk
from sweeps.evolve.go.variables import Variables
from sweeps.evolve.go.writer import (
    CLASS,
    FIXED,
    INSTANCE,
    LIST,
    SCORER,
    GoValue,
    array,
    constant,
    typed,
)

if TYPE_CHECKING:
    from tree_sitter import Node


SWITCH = "switch_"  # begins the name of a switch that `break` leaves, as those of loops are numbers


class Loops(Variables):
    """Translate loops, `break` and `continue`."""

    def do_continue_statement(self, node: Node) -> None:
        """Translate `continue`."""
        self._leave(node, "skip")

    def do_break_statement(self, node: Node) -> None:
        """Translate `break`."""
        self._leave(node, "stop")

    def _leave(self, node: Node, word: str) -> None:
        if node.named_children:
            self.refuse(node, "a label is not read")
        self.tell(node)
        left = (frame.loop for frame in reversed(self.frames) if frame.loop)
        loop = next((name for name in left if word == "stop" or not name.startswith(SWITCH)), "")
        self.set_flag(f"{word}_{loop}", loop)

    def do_for_statement(self, node: Node) -> None:
        """Translate `for … { … }`."""
        loop = self._loop(node)
        if loop is None:
            return
        self.tell(node, whole=False)
        if loop.axis == INSTANCE and (claims := Claims(self, loop)).is_free:
            self._at_once(loop, claims)
            return
        if loop.is_map:
            self.refuse(
                node,
                "Go ranges over a map in a random order, on which this loop depends; range over snapshots",
            )
        self._one_by_one(loop)

    # --- what a loop goes over --------------------------------------------------------------------

    def _loop(self, node: Node) -> GoLoop | None:
        head = next(
            (
                child
                for child in node.named_children
                if child.type in ("range_clause", "for_clause")
            ),
            None,
        )
        body = field(node, "body")
        if head is None:
            self.refuse(node, "a loop without a bound is not read")
            return None
        return (
            self._ranged(node, head, body)
            if head.type == "range_clause"
            else self._counted(node, head, body)
        )

    def _ranged(self, node: Node, head: Node, body: Node) -> GoLoop | None:
        left, over = head.child_by_field_name("left"), self.value(field(head, "right"))
        names = [text_of(part) for part in items(left)] if left is not None else []
        key, element = (*names, "", "")[:2]
        if left is not None and not any(text_of(part) == ":=" for part in head.children):
            self.refuse(head, "a range that assigns to variables from outside is not read")
        if over.kind == "observers":
            self.tell_observers(self.root, node)
            return None
        if over.kind == "int" and not over.axes:
            return GoLoop(node, *self._extent(head, over), key, "", body)
        if (
            not over.axes
            or over.axes[0] == CLASS
            or (len(over.axes) > 1 and over.axes[0] == INSTANCE)
        ):
            self.refuse(head, "a range over this is not read")
        is_map = over.axes[0] == INSTANCE and over.is_map
        return GoLoop(node, over.axes[0], over, key, element, body, is_map=is_map)

    def _extent(self, node: Node, bound: GoValue) -> tuple[str, GoValue | None]:
        """Return the axis whose length the bound is; for a constant bound, the fixed axis and the bound itself."""
        if bound.extent:
            return bound.extent, None
        if bound.is_static or bound.const is not None:
            return FIXED, typed(bound, "int") if bound.is_untyped else bound
        self.refuse(node, "a loop up to this bound is not read")
        raise AssertionError

    def _counted(self, node: Node, head: Node, body: Node) -> GoLoop:
        first, test, update = (
            head.child_by_field_name(name) for name in ("initializer", "condition", "update")
        )
        shape = [part.type if part else "" for part in (first, test, update)]
        if first is None or test is None or update is None or shape != [
            "short_var_declaration", "binary_expression", "inc_statement",
        ]:  # fmt: skip
            self.refuse(head, "only loops such as `for i := 0; i < n; i++` are read")
            raise AssertionError
        name = text_of(field(first, "left"))
        operator, bound = text_of(field(test, "operator")), field(test, "right")
        if (
            operator not in ("<", "<=")
            or text_of(field(test, "left")) != name
            or text_of(items(update)[0]) != name
        ):
            self.refuse(head, "only loops such as `for i := 0; i < n; i++` are read")
        begin, end = self.number(items(field(first, "right"))[0], "int"), self.value(bound)
        if end.is_untyped:
            end = typed(end, "int")
        is_list = bound.type == "call_expression" and text_of(field(bound, "function")) == "len"
        over = self.value(items(field(bound, "arguments"))[0]) if is_list else None
        start = "" if begin.const == 0 else begin.code
        if over is not None and over.is_list and operator == "<":
            return GoLoop(node, LIST, over, name, "", body, start)
        axis, fixed = self._extent(head, end)
        if operator == "<=":
            if fixed is None:
                self.refuse(head, "a loop beyond the last instance is not read")
            else:
                fixed = GoValue(f"{fixed.code} + 1", "int", is_static=True)
        return GoLoop(node, axis, fixed, name, "", body, start)

    # --- all at once ------------------------------------------------------------------------------

    def _at_once(self, loop: GoLoop, claims: Claims) -> None:
        number = str(self.program.line(loop.node))
        has = loop.over.has if loop.is_map and loop.over is not None else ""
        there = f"{has} & go.there" if has else "go.there"
        if loop.start:
            there = f"{there} & (go.place >= {loop.start})"
        name = self.fresh(f"each_{number}")
        self.emit(f"{name} = {f'{self.mask} & {there}' if self.mask else there}")
        skips = any(part.type == "continue_statement" for part in walk(loop.body))
        if skips:
            number = self.fresh(f"skip_{number}").removeprefix("skip_")
            self.emit(f"skip_{number} = jnp.zeros(go.size, bool)")
        with self.block(name, loop=number):
            self._name_pass(loop, GoValue("go.place", "int", is_own=True))
            claims.outer, self.claims = self.claims, claims
            self.run(statements_of(loop.body))
            self.claims = claims.outer

    def _name_pass(self, loop: GoLoop, place: GoValue) -> None:
        scope = self.scopes[-1]
        if loop.key not in ("", "_"):
            is_id = loop.is_map
            scope[loop.key] = GoValue(
                place.code, "id" if is_id else "int", is_own=place.is_own, is_static=place.is_static
            )
        if loop.element in ("", "_") or loop.over is None:
            return
        scope[loop.element] = self.element(loop.node, loop.over, place)

    def run(self, statements: list[Node]) -> None:
        """Translate statements; a statement that its loop has claimed becomes one operation over all instances."""
        for node in statements:
            claim = self.claims.by_node.get(node.id) if self.claims else None
            if claim is None:
                super().run([node])
            else:
                claim(node)

    claims: Claims | None = None

    def claimed_sum(self, node: Node) -> None:
        """Translate `total += value` over all instances."""
        self.tell(node)
        if node.type == "assignment_statement":
            target, added = items(field(node, "left"))[0], items(field(node, "right"))[0]
            is_minus = text_of(field(node, "operator")) == "-="
            old = self._own(target)
            value = self.value(added)
        else:
            target, is_minus = items(node)[0], node.type == "dec_statement"
            old, value = self._own(target), constant(1, "int")
        value = self.fitting(node, value, old)
        code = array(value)
        self.emit(
            f"{old.code} = summed({old.code}, {'-' if is_minus else ''}({code}), {self.mask})"
        )

    def claimed_append(self, node: Node) -> None:
        """Translate `slice = append(slice, value)` over all instances."""
        self.tell(node)
        old = self._own(items(field(node, "left"))[0])
        value = self.value(items(field(items(field(node, "right"))[0], "arguments"))[1])
        value = typed(value, old.kind) if value.is_untyped else value
        if value.kind != old.kind:
            self.refuse(node, "a value of another type is not read")
        self.emit(f"{old.code} = {old.code}.extend({array(value)}, {self.mask})")

    def claimed_extreme(self, node: Node) -> None:
        """Translate `best = max(best, value)` over all instances."""
        self.tell(node)
        target = items(field(node, "left"))[0]
        met = extreme_of(node, text_of(target))
        assert met is not None  # it has been claimed
        old = self._own(target)
        value = self.fitting(node, self.value(met[1]), old)
        self.emit(f"{old.code} = extreme({old.code}, {array(value)}, {self.mask}, {met[0]!r})")

    def claimed_flag(self, node: Node) -> None:
        """Translate `flag = constant` over all instances."""
        self.tell(node)
        old = self._own(items(field(node, "left"))[0])
        value = self.fitting(node, self.value(items(field(node, "right"))[0]), old)
        self.emit(f"{old.code} = jnp.where(jnp.any({self.mask}), {array(value)}, {old.code})")

    def claimed_best(self, node: Node) -> None:
        """Translate `if value > best { best = value; … }` over all instances."""
        self.tell(node)
        line = self.program.line(node)
        with self.block(self.mask):
            first = node.child_by_field_name("initializer")
            if first is not None:
                self.do_short_var_declaration(first, is_told=False)
            assert self.claims is not None
            met = best_of(field(node, "condition"), self.claims.outside)
            pairs = assignments(field(node, "consequence"))
            assert met is not None and pairs is not None  # it has been claimed
            operator, value, best, guards = met
            mask = self.mask
            for guard in guards:
                mask = f"{mask} & ({array(self.condition(guard))})"
            old = self._own(best)
            number = self.fitting(value, self.value(value), old)
            is_found, place = self.fresh(f"found_{line}"), self.fresh(f"at_{line}")
            self.emit(
                f"{is_found}, {place} = winner({array(number)}, {mask}, {old.code}, {operator!r})"
            )
            new = []
            for target, assigned in pairs:
                kept = self._own(target)
                new.append((kept, self.fitting(assigned, self.value(assigned), kept)))
            for kept, value_ in new:
                code = f"lanes({array(value_)}, go.size)[{place}]"
                self.emit(f"{kept.code} = jnp.where({is_found}, {code}, {kept.code})")

    # --- one by one -------------------------------------------------------------------------------

    def _one_by_one(self, loop: GoLoop) -> None:
        line = str(self.program.line(loop.node))
        index = self.fresh(loop.key if loop.key not in ("", "_") else f"pass_{line}")
        number = self.fresh(f"skip_{line}").removeprefix("skip_")
        kinds = {
            part.type
            for part in walk(loop.body)
            if part.type != "return_statement" or owner_of(part) == self.root
        }
        if "break_statement" in kinds:
            self.emit(f"stop_{number} = jnp.bool_(False)")
        code = loop.over.code if loop.over is not None else ""
        size = {INSTANCE: "go.size", SCORER: "go.num_scorers", LIST: f"{code}.capacity"}.get(
            loop.axis, code
        )
        if loop.axis == FIXED and loop.over is not None and loop.over.axes:
            size = f"{code}.shape[0]"
        there = {INSTANCE: f"go.there[{index}]", LIST: f"({index} < {code}.count)"}.get(
            loop.axis, ""
        )
        before = self.fresh("passes") if loop.axis == LIST else ""
        if before:  # what is ranged over may grow meanwhile
            self.emit(f"{before} = {code}")
            size, there = f"{before}.capacity", f"({index} < {before}.count)"
        is_fixed = loop.start.lstrip("-").isdigit() or not loop.start
        parts = [part for part in (self.mask, there) if part]
        if not is_fixed:
            parts.append(f"({index} >= {loop.start})")
        first = f"{loop.start}, " if is_fixed and loop.start else ""
        self.emit(f"for {index} in range({first}{size}):")
        self.indent += 1
        outer, self.claims = self.claims, None
        count = len(self.lines)
        if "continue_statement" in kinds:
            self.emit(f"skip_{number} = jnp.bool_(False)")
        if "break_statement" in kinds:
            parts.append(f"~stop_{number}")
        if "return_statement" in kinds:
            parts.append("~done")
        mask = ""
        if parts:
            mask = self.fresh(f"pass_{line}_is_made")
            self.emit(f"{mask} = {' & '.join(parts)}")
        with self.block(mask, loop=number):
            self._name_pass(loop, GoValue(index, "int", is_static=True))
            self.run(statements_of(loop.body))
        if len(self.lines) == count:
            self.emit("pass")
        self.claims = outer
        self.indent -= 1
