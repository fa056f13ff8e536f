"""Translate a Go routing function to a policy: a Python file with the Go lines as comments."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError
from sweeps.evolve import running
from sweeps.evolve.go.loops import SWITCH, Loops
from sweeps.evolve.go.source import (
    GoProgram,
    field,
    items,
    only_panics,
    parameters_of,
    receiver_of,
    results_of,
    statements_of,
    text_of,
    walk,
)
from sweeps.evolve.go.step_writer import steps_of
from sweeps.evolve.go.structs import without_structs
from sweeps.evolve.go.writer import INSTANCE, NUMBERS, GoValue, MaskedBlock, array, head_of, typed

if TYPE_CHECKING:
    from tree_sitter import Node


class GoFunction(Loops):
    """A Go function to translate: a helper of the file, a closure, or the routing function itself."""

    def __init__(
        self,
        program: GoProgram,
        root: Node,
        functions: dict[tuple[str, ...], GoFunction] | None = None,
    ) -> None:
        super().__init__(program, root)
        # of the file, by name and kinds of arguments
        self.functions = {} if functions is None else functions
        self.name = ""

    # --- statements -------------------------------------------------------------------------------

    def do_block(self, node: Node) -> None:
        """Translate a block in a scope of its own."""
        with self.block(self.mask):
            self.run(statements_of(node))

    def do_expression_statement(self, node: Node) -> None:
        """Translate `copy(a, b)`; drop calls that only check or log."""
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
            if only_panics(consequence) and other is None:
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
        """Translate `return …`; with several returns, the results are stored until the end of the function."""
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
        """Return the kinds of the function's results; an empty list for the routing function."""
        results = results_of(self.root) if self.root != self.program.route else []
        return [self.type_of(kind)[0] for _, kind in results]

    def named_results(self) -> list[Node]:
        """Return the name nodes of the function's results, for results that have names."""
        return [name for name, _ in results_of(self.root) if name is not None]

    def result(self, node: Node) -> GoValue:
        """Translate one result of a return."""
        return self.value(node)

    # --- calls of functions -----------------------------------------------------------------------

    def _func_literal(self, node: Node) -> GoValue:
        name = self.fresh("closure")
        self.closures[name] = node, [dict(scope) for scope in self.scopes]
        return GoValue(name, "function")

    def called(self, node: Node, name: str, arguments: list[Node]) -> GoValue:
        """Translate a call; the function is translated once for each combination of argument kinds."""
        closure = self.find(name)
        root = self.closures[closure.code][0] if closure is not None else self.program.helpers[name]
        values = [self.value(argument) for argument in arguments]
        names, kinds = parameters_of(root)
        if len(names) != len(values) or root == self.root:
            return self.refuse(node, "this call is not read")
        for place, (value, kind) in enumerate(zip(values, kinds, strict=True)):
            if value.is_untyped or value.kind == "string":
                wanted = self.type_of(kind)[0]
                values[place] = typed(value, wanted) if value.is_untyped else self.as_class(value)
        return self.called_with(name, root, closure, names, values)

    def called_with(
        self,
        name: str,
        root: Node,
        closure: GoValue | None,
        names: list[str],
        values: list[GoValue],
    ) -> GoValue:
        """Translate a call with these values for the parameters `names`."""
        key = (
            closure.code if closure is not None else name,
            *(f"{v.kind}{v.axes}" for v in values),
        )
        made = self.functions.get(key)
        if made is None:
            made = self._made(root, names, values, closure)
            self.functions[key] = made
        told = [array(value) for value in values if value.kind not in _ABSENT]
        code = f"{made.name}({', '.join(['go', *told])})"
        if len(made.returned) != 1:
            self.several[code] = tuple(made.returned)
            return GoValue(code, "several")
        answer = made.returned[0]
        return GoValue(code, answer.kind, answer.axes)

    def _made(
        self, root: Node, names: list[str], values: list[GoValue], closure: GoValue | None
    ) -> GoFunction:
        is_closure = closure is not None
        made = GoFunction(self.program, root, self.functions)
        made.name = self.fresh(
            text_of(field(root, "name"))
            if not is_closure
            else f"function_{self.program.line(root)}"
        )
        made.closures, made.taken = self.closures, self.taken
        made.scopes = [*(self.closures[closure.code][1] if closure is not None else []), {}]
        made.captured = len(made.scopes) - 1
        if root.type == "method_declaration":  # of the router
            made.scopes[-1] |= dict.fromkeys(receiver_of(root), GoValue("", "router"))
        told = []
        for name, value in zip(names, values, strict=True):
            if value.kind in _ABSENT:
                made.scopes[-1][name] = value
                continue
            python = made.fresh(name)
            made.scopes[-1][name] = GoValue(
                python, value.kind, value.axes, has=value.has, is_alias=bool(value.axes)
            )
            told.append(python)
        made.indent = self.indent if is_closure else 1
        made.lines = []
        if not is_closure:
            made.indent = 0
        made.emit(f"def {made.name}({', '.join(['go', *told])}):")
        made.indent += 1
        made.translate()
        if is_closure:
            self.lines += made.lines
        return made

    def translate(self) -> None:
        """Translate the function's body and the return of its results."""
        for result in self.named_results():
            self.declare(result, self._zero(result.parent))  # type: ignore[arg-type]
        if self.returns_early:
            self.emit("done = jnp.bool_(False)")
            for place, kind in enumerate(self.result_kinds() or ["id"]):
                self.emit(f"answer_{place} = {'jnp.bool_(False)' if kind == 'bool' else '0'}")
        self.run(statements_of(field(self.root, "body")))
        if not self.returned:
            self.refuse(self.root, "a function without a result is not read")
        names = [value.code for value in self.returned]
        self.emit(f"return {names[0]}" if len(names) == 1 else f"return ({', '.join(names)})")


_ABSENT = ("snapshots", "request", "router", "state", "rng", "scorer")  # they are in `go`


class Route(GoFunction):
    """The routing function, whose result is a decision."""

    def __init__(self, program: GoProgram) -> None:
        super().__init__(program, program.route)
        receiver, (request, state) = receiver_of(program.route), parameters_of(program.route)[0]
        scope = self.scopes[0]
        for name in receiver:
            scope[name] = GoValue("", "router")
        scope[request], scope[state] = GoValue("", "request"), GoValue("", "state")
        scope.setdefault("snapshots", GoValue("", "snapshots", (INSTANCE,)))
        self.scopes.append({})
        self.frames = [MaskedBlock("", is_function=True)]

    def result(self, node: Node) -> GoValue:
        """Translate a decision: return the instance that the decision names."""
        target = self.decided(node)
        value = self.value(target)
        return value if value.kind == "id" else self.refuse(target, "an instance's ID is wanted")


def policy_of(program: GoProgram, module: str = "mine") -> str:
    """Return the Python file of a policy `route` that decides as the program does.

    A program that cannot be written as vector operations is written statement by statement.

    Raises:
        ConfigError: the program uses a part of Go that is not supported; the sentence says which part and where.
    """
    notes = list(program.notes)
    try:
        return _vectors_of(without_structs(program), module)
    except ConfigError:
        program.notes[:] = notes
        return steps_of(program, module)


def _vectors_of(program: GoProgram, module: str) -> str:
    route = Route(program)
    route.translate()
    route.check_observers()
    body = "\n".join(route.lines)
    helpers = [
        function for function in route.functions.values() if function.root.type != "func_literal"
    ]
    parts = ["\n".join(helper.lines) for helper in helpers]
    draws = "go.intn(" in body or any("go.intn(" in part for part in parts)
    decorator = "@routing_policy(start=none_used, is_random=True)" if draws else "@routing_policy()"
    decides = body.rpartition("    return answer_0")[0]
    parts.append(
        f'{decorator}\ndef route(params, state, context):\n    """Choose the instance that {program.name} chooses."""\n'
        f"    go = GoRouter(context, state)\n{decides}    return go.decided(answer_0)"
    )
    return _head(program, module, parts, draws) + "\n\n\n".join(map(_tidied, parts)) + "\n"


def _head(program: GoProgram, module: str, parts: list[str], draws: bool) -> str:
    text = "\n".join(parts)
    code = "\n".join(line for line in text.split("\n") if not line.lstrip().startswith("#"))
    words = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    notes = [
        "In flight is `num_pending`: in blis-2026-08 until a request completes, in blis-2026-02 until it is queued"
    ] * ("go.in_flight" in code)
    notes += ["Exponentials and powers may differ from Go's in the last bit"] * any(
        word in code for word in ("jnp.exp", "jnp.power", "jnp.log", "jnp.tanh", "jnp.cbrt")
    )
    names = ",\n    ".join(name for name in running.__all__ if name in words)
    imports = [
        "import jax.numpy as jnp\n",
        "from blis_jax.policies import routing_policy",
        *(["from blis_jax.policies.routing.pickers import none_used"] if draws else []),
        f"from sweeps.evolve.running import (\n    {names},\n)",
    ]
    needs = "go.scores" in code or "go.weights" in code or "go.num_scorers" in code
    return head_of(program, module, "\n".join(imports), reads_scorers=needs, notes=notes)


def _tidied(part: str) -> str:
    """Return the code without redundant parentheses."""
    lines = []
    for line in part.split("\n"):
        code = line.strip()
        space = line[: len(line) - len(line.lstrip())]
        is_plain = code and not code.startswith(("#", "@", "def ", "for ", '"""', "return"))
        lines.append(space + ast.unparse(ast.parse(code)) if is_plain else line)
    return "\n".join(lines)
