"""Variables of Go: declarations, and assignments under a mask as a choice between the old and the new value."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from sweeps.evolve.go.calls import Calls
from sweeps.evolve.go.source import field, items, text_of, walk
from sweeps.evolve.go.writer import (
    CLASS,
    DTYPES,
    EMPTY,
    INSTANCE,
    LIST,
    NUMBERS,
    GoValue,
    array,
    constant,
    truth,
    typed,
)

if TYPE_CHECKING:
    from tree_sitter import Node


_OPERATORS = {f"{operator}=": operator for operator in ("+", "-", "*", "/", "%")}


class Variables(Calls):
    """Translate declarations and assignments."""

    # --- declarations -----------------------------------------------------------------------------

    def do_short_var_declaration(self, node: Node, is_told: bool = True) -> None:
        """Translate `a, b := …`."""
        if is_told:
            self.tell(node)
        names, values = items(field(node, "left")), self._values(node)
        for name, value in zip(names, values, strict=True):
            text = text_of(name)
            if text == "_":
                continue
            if text in self.scopes[-1]:  # `:=` assigns what is there already
                self.assign(name, value)
            else:
                self.declare(name, value)

    def do_var_declaration(self, node: Node) -> None:
        """Translate `var a T = …`."""
        self.tell(node)
        for spec in (part for part in walk(node) if part.type == "var_spec"):
            names = [name for name in spec.children_by_field_name("name") if name.is_named]
            right, kind = spec.child_by_field_name("value"), spec.child_by_field_name("type")
            values = [self.value(value) for value in items(right)] if right else []
            for place, name in enumerate(names):
                value = values[place] if right else self._zero(spec)
                if kind is not None and right:
                    wanted, _ = self.type_of(kind)
                    value = (
                        typed(value, wanted) if value.is_untyped and wanted in NUMBERS else value
                    )
                self.declare(name, value)

    def do_const_declaration(self, node: Node) -> None:
        """Record `const a = …`; the value is written wherever the name is used."""
        self.tell(node)
        for spec in (part for part in walk(node) if part.type == "const_spec"):
            value = self.value(items(field(spec, "value"))[0])
            if value.const is None:
                self.refuse(spec, "this constant is not read")
            kind = spec.child_by_field_name("type")
            if kind is not None and value.is_untyped:
                value = replace(typed(value, self.type_of(kind)[0]), is_untyped=False)
            self.scopes[-1][text_of(field(spec, "name"))] = value

    def _zero(self, spec: Node) -> GoValue:
        kind = field(spec, "type")
        wanted, axes = self.type_of(kind)
        if wanted == "snapshots":
            wanted, axes = "snap", (LIST,)
        if axes == (LIST,):
            zeros = ""
            if kind.type == "array_type":
                length = self.value(field(kind, "length")).const
                if not isinstance(length, Fraction):
                    self.refuse(spec, "an array of this length is not read")
                    raise AssertionError
                zeros = f", {', '.join([EMPTY[wanted]] * int(length))}" * (length > 0)
            return GoValue(f"slice_of({DTYPES[wanted]}{zeros})", wanted, axes)
        if axes:
            self.refuse(spec, "a map that is nil is not read")
        if wanted == "id":
            return GoValue("", "string", const="")
        if wanted == "snap":
            return GoValue("-1", "snap", is_static=True)
        return truth(False) if wanted == "bool" else constant(0, wanted)

    def _values(self, node: Node) -> list[GoValue]:
        """Return the values on the right side of a declaration or assignment, one for each name on the left."""
        names, right = items(field(node, "left")), items(field(node, "right"))
        if len(names) == len(right):
            return [self.value(value) for value in right]
        if len(names) == 2 and right[0].type == "index_expression":
            return self._with_presence(right[0])
        value = self.value(right[0])
        if value.kind == "several" and len(self.returned_by(value)) == len(names):
            name = self.fresh("several")
            self.emit(f"{name} = {value.code}")
            return [
                replace(result, code=f"{name}[{place}]")
                for place, result in enumerate(self.returned_by(value))
            ]
        self.refuse(node, "not read")
        return []

    def returned_by(self, value: GoValue) -> tuple[GoValue, ...]:
        """Return the values that a call with several results returns."""
        return self.several[value.code]

    def _with_presence(self, node: Node) -> list[GoValue]:
        owner, place = self.value(field(node, "operand")), self.value(field(node, "index"))
        value = self.element(node, owner, place)
        place = self.key(node, owner.axes[0], place)
        if owner.axes[0] not in (INSTANCE, CLASS) or len(owner.axes) > 1:
            self.refuse(node, "two values of this are not read")
        has = owner.has or "go.there"
        code = has if place.is_own else f"at({has}, {place.code})"
        return [value, GoValue(code, "bool")]

    def declare(self, name: Node, value: GoValue) -> None:
        """Declare a variable with a value."""
        text = text_of(name)
        if text == "_":
            return
        if value.kind in ("text", "nil", "several", "session", "tokens"):
            if value.kind != "text":
                self.refuse(name, "a variable of this is not read")
            self.scopes[-1][text] = value
            return
        if value.kind in ("snapshots", "scorer", "request", "router", "state", "rng", "function"):
            if text in self.reassigned:
                self.refuse(name, "a variable of this that changes is not read")
            self.scopes[-1][text] = value
            return
        if value.kind == "string":
            value = self._text(name, value)
            if value.kind == "text":
                self.scopes[-1][text] = value
                return
        if value.kind == "id" and value.axes and self._holds_words(text):
            self.scopes[-1][text] = GoValue("None", "text")
            return
        self._check_alias(name, value)
        python = self.fresh(text)
        keeps = text not in self.reassigned
        code = typed(value, value.kind) if value.is_untyped else value
        self.emit(f"{python} = {array(code)}")
        has = ""
        if value.is_map and value.axes == (INSTANCE,) and self._asks_for_keys(text):
            has = self.fresh(f"has_{text}")
            is_empty = value.code.startswith("jnp.full")
            self.emit(
                f"{has} = jnp.zeros(go.size, bool)"
                if is_empty
                else f"{has} = {value.has or 'go.there'}"
            )
        self.scopes[-1][text] = replace(value.named(python, keeps), has=has or value.has)

    def _text(self, name: Node, value: GoValue) -> GoValue:
        """Return the value of a variable that starts as text: an ID, a class, or words for the decision's reason."""
        text = text_of(name)
        others = [
            right
            for node in walk(self.root)
            if node.type in ("assignment_statement", "short_var_declaration")
            and node.child_by_field_name("right")
            for left, right in zip(
                items(field(node, "left")), items(field(node, "right")), strict=False
            )
            if text_of(left) == text
        ]
        if value.const == "" and any(text_of(right).endswith((".ID", "ID")) for right in others):
            return GoValue("-1", "id", is_static=True)
        if any(text_of(right).endswith("SLOClass") for right in others):
            return replace(self.as_class(value), is_static=True)
        return GoValue("None", "text")

    def _holds_words(self, name: str) -> bool:
        """Return whether a map's or slice's elements are words for the decision's reason."""
        for node in walk(self.root):
            if node.type == "assignment_statement":
                for left, right in zip(
                    items(field(node, "left")), items(field(node, "right")), strict=False
                ):
                    if left.type == "index_expression" and text_of(field(left, "operand")) == name:
                        return "fmt." in text_of(right) or right.type.endswith("string_literal")
        return False

    def _asks_for_keys(self, name: str) -> bool:
        """Return whether the program asks which keys a map has."""
        for node in walk(self.root):
            if node.type == "call_expression" and text_of(node).replace(" ", "") in (
                f"len({name})",
            ):
                return True
            if node.type == "range_clause" and text_of(field(node, "right")) == name:
                return True
            if node.type == "call_expression" and text_of(field(node, "function")) == "delete":
                return True
            if node.type in ("short_var_declaration", "assignment_statement"):
                left, right = items(field(node, "left")), items(field(node, "right"))
                if len(left) == 2 and len(right) == 1 and text_of(right[0]).startswith(f"{name}["):
                    return True
        return False

    def _check_alias(self, name: Node, value: GoValue) -> None:
        """Refuse a second name for a container if either name changes it: in Go both names would see the change."""
        if not value.axes:
            return
        declaration = name.parent.parent if name.parent else None
        right = declaration.child_by_field_name("right") if declaration else None
        source = text_of(items(right)[0]) if right else ""
        if value.is_list and not value.is_alias and self.find(source) is None:
            return  # a new one
        base = source.partition("[")[0]
        is_shared = value.is_alias or (self.find(source) is not None and self.find(source).axes)  # type: ignore[union-attr]
        if not is_shared:
            return
        loop = _outermost_loop(name)
        for element in self.elements:
            changed = text_of(element).partition("[")[0]
            is_later = element.start_byte > name.start_byte or (
                loop is not None and element.start_byte >= loop.start_byte
            )
            if changed == text_of(name) or (changed == base and is_later):
                self.refuse(
                    element,
                    f"{text_of(name)} and {source} are one slice or map, which is changed here; use copy",
                )

    # --- assignments ------------------------------------------------------------------------------

    def do_assignment_statement(self, node: Node) -> None:
        """Translate `a, b = …` and `a += …`."""
        self.tell(node)
        targets, operator = items(field(node, "left")), text_of(field(node, "operator"))
        if operator != "=":
            if operator not in _OPERATORS or len(targets) != 1:
                self.refuse(node, "not read")
            self.change(
                node, targets[0], _OPERATORS[operator], self.value(items(field(node, "right"))[0])
            )
            return
        values = self._values(node)
        if len(values) > 1:  # all are known before any is assigned
            for place, value in enumerate(values):
                if value.code and not value.is_untyped:
                    name = self.fresh("new")
                    self.emit(f"{name} = {value.code}")
                    values[place] = replace(value, code=name)
        for target, value in zip(targets, values, strict=True):
            self.assign(target, value)

    def do_inc_statement(self, node: Node) -> None:
        """Translate `a++`."""
        self.tell(node)
        self.change(node, items(node)[0], "+", constant(1, "int"))

    def do_dec_statement(self, node: Node) -> None:
        """Translate `a--`."""
        self.tell(node)
        self.change(node, items(node)[0], "-", constant(1, "int"))

    def change(self, node: Node, target: Node, operator: str, value: GoValue) -> None:
        """Translate `target op= value`."""
        self.assign(target, self.operation(node, operator, self.value(target), value))

    def assign(self, target: Node, value: GoValue) -> None:
        """Translate `target = value` under the present mask."""
        if target.type == "index_expression":
            self._assign_element(target, value)
            return
        if target.type != "identifier":
            self.refuse(
                target, "an assignment to this is not read: it would be kept between requests"
            )
        name = text_of(target)
        if name == "_":
            return
        old = self._own(target)
        if old.kind == "text":
            return
        value = self.fitting(target, value, old)
        if value.axes and not value.is_list:
            self._check_alias(target, value)
        if old.axes == (LIST,):
            code = f"either({self.mask}, {value.code}, {old.code})" if self.mask else value.code
        elif old.axes:
            if old.axes != value.axes or old.has:
                self.refuse(target, "this assignment is not read")
            code = self.chosen(value.code, old.code)
        else:
            code = self.chosen(value.code, old.code) if self.mask else array(value)
        self.emit(f"{old.code} = {code}")

    def _own(self, target: Node) -> GoValue:
        """Return the variable that a name assigns; refuse a variable of an enclosing function."""
        name = text_of(target)
        for scope in self.scopes[self.captured :]:
            if name in scope:
                variable = self.find(name)
                assert variable is not None
                return variable
        self.refuse(target, "an assignment to a variable of another function is not read")
        raise AssertionError

    def fitting(self, node: Node, value: GoValue, old: GoValue) -> GoValue:
        """Return the value converted to the kind of the variable `old`, or refuse the program."""
        if value.is_untyped and old.kind in NUMBERS:
            return typed(value, old.kind)
        if value.kind == "string":
            if old.kind == "id" and value.const == "":
                return GoValue("-1", "id", is_static=True)
            value = self.as_class(value)
        if value.kind == "snapshots" and old.kind == "snap" and old.is_list:
            return GoValue("Slice(go.place, go.count)", "snap", (LIST,))
        if value.kind == "nil" and old.kind == "snap":
            return GoValue("-1", "snap", is_static=True)
        if value.kind != old.kind:
            self.refuse(node, "an assignment of another type is not read")
        return value

    def chosen(self, new: str, old: str) -> str:
        """Return the code that selects the new value where the present statement is executed, else the old one."""
        return f"jnp.where({self.mask}, {new}, {old})" if self.mask else new

    def _assign_element(self, target: Node, value: GoValue) -> None:
        places: list[GoValue] = []
        node = target
        while node.type == "index_expression":
            places.insert(0, self.value(field(node, "index")))
            node = field(node, "operand")
        owner = self._own(node) if node.type == "identifier" else self.value(node)
        if owner.kind == "text":
            return
        if (
            node.type != "identifier"
            or owner.is_alias
            or not owner.axes
            or len(places) > len(owner.axes)
        ):
            self.refuse(
                target, "an assignment to this is not read: it would be kept between requests"
            )
        places = [
            self.key(target, axis, place) for axis, place in zip(owner.axes, places, strict=False)
        ]
        row = owner.axes[len(places) :]
        value = self.fitting(target, value, owner)
        if value.axes != row:
            self.refuse(target, "this assignment is not read")
        code = value.code
        if owner.is_list:
            old = f"{owner.code}.values"
            self.emit(
                f"{owner.code} = Slice(put({old}, ({places[0].code},), {code}, {self.mask or True}), "
                f"{owner.code}.count)"
            )
        elif places[-1].is_own and len(places) == 1:
            shaped = code if row else f"lanes({code}, go.size)"
            self.emit(f"{owner.code} = {self.chosen(code, owner.code) if self.mask else shaped}")
        elif places[-1].is_own:
            first = places[0].code
            old = f"{owner.code}[{first}]"
            self.emit(
                f"{owner.code} = put({owner.code}, ({first},), {self.chosen(code, old)}, True)"
            )
        else:
            where = ", ".join(place.code for place in places)
            self.emit(f"{owner.code} = put({owner.code}, ({where},), {code}, {self.mask or True})")
        if owner.has:
            mask = self.mask or "True"
            self.emit(
                f"{owner.has} = {owner.has} | ({mask})" if places[-1].is_own
                else f"{owner.has} = put({owner.has}, ({places[-1].code},), True, {mask})"
            )  # fmt: skip


def _outermost_loop(node: Node) -> Node | None:
    outermost, above = None, node.parent
    while above is not None:
        outermost = above if above.type == "for_statement" else outermost
        above = above.parent
    return outermost
