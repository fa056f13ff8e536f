"""A routing function in Go as a policy: a Python file with Go's lines beside it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError
from sweeps.evolve import running
from sweeps.evolve.go.loops import Loops
from sweeps.evolve.go.source import (
    GoProgram,
    field,
    parameters_of,
    receiver_of,
    statements_of,
    text_of,
)
from sweeps.evolve.go.step_writer import steps_of
from sweeps.evolve.go.structs import without_structs
from sweeps.evolve.go.writer import INSTANCE, GoValue, MaskedBlock, array, typed

if TYPE_CHECKING:
    from tree_sitter import Node


class GoFunction(Loops):
    """A function of the file, a closure, or the routing function itself."""

    def __init__(
        self,
        program: GoProgram,
        root: Node,
        functions: dict[tuple[str, ...], GoFunction] | None = None,
    ) -> None:
        super().__init__(program, root)
        self.functions = (
            {} if functions is None else functions
        )  # of the file, by name and kinds of arguments
        self.name = ""

    # --- calls of functions -----------------------------------------------------------------------

    def _func_literal(self, node: Node) -> GoValue:
        name = self.fresh("closure")
        self.closures[name] = node, [dict(scope) for scope in self.scopes]
        return GoValue(name, "function")

    def called(self, node: Node, name: str, arguments: list[Node]) -> GoValue:
        """Translate a call: the function is translated once for each kinds of its arguments."""
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
        """Translate a call with these values for these parameters."""
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
        """Translate the body of the function, and give back what it returns."""
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
    """The routing function."""

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
        """Translate a decision: the instance that it names."""
        target = self.decided(node)
        value = self.value(target)
        return value if value.kind == "id" else self.refuse(target, "an instance's ID is wanted")


_HEAD = '''\
"""{title}

Read from Go by `blis-jax evolve read`; `# n:` is line n of {name}. Run it as
`--routing-policy {module}.py:route`{scorers}.
{notes}"""

import jax.numpy as jnp

from blis_jax.policies import routing_policy
{draws}from sweeps.evolve.running import (
    {names},
)


'''


def policy_of(program: GoProgram, module: str = "mine") -> str:
    """Return the Python file of a policy `route` that decides as the program does.

    What has no form as vectors is written statement by statement.

    Raises:
        ConfigError: the program has something that is not read; the sentence says where and what.
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
        "In flight is `num_pending`: in blis-2026-08 until a request completes, in blis-2026-02 until it is queued."
    ] * ("go.in_flight" in code)
    notes += ["Exponentials and powers may differ from Go's in the last bit."] * any(
        word in code for word in ("jnp.exp", "jnp.power", "jnp.log", "jnp.tanh", "jnp.cbrt")
    )
    notes += [f"{note}." for note in program.notes]
    needs = "go.scores" in code or "go.weights" in code or "go.num_scorers" in code
    return _HEAD.format(
        title=f"The routing function of {program.name}.",
        name=program.name,
        module=module,
        scorers=" with its `--routing-scorers`" if needs else "",
        notes="".join(f"{note}\n" for note in notes),
        draws="from blis_jax.policies.routing.pickers import none_used\n" if draws else "",
        names=",\n    ".join(name for name in running.__all__ if name in words),
    )


def _tidied(part: str) -> str:
    """Return the code without the parentheses that Python does not need."""
    lines = []
    for line in part.split("\n"):
        code = line.strip()
        space = line[: len(line) - len(line.lstrip())]
        is_plain = code and not code.startswith(("#", "@", "def ", "for ", '"""', "return"))
        lines.append(space + ast.unparse(ast.parse(code)) if is_plain else line)
    return "\n".join(lines)
