"""Write the Python for a Go program: lines and names for either form, values and masks for the form as vectors."""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as made_of
from fractions import Fraction
from typing import TYPE_CHECKING, Generic, TypeVar

from blis_jax.core.types import SLO_CLASSES
from sweeps.evolve import running
from sweeps.evolve.go.source import (
    DECISIONS,
    GoProgram,
    field,
    items,
    owner_of,
    statements_of,
    text_of,
    walk,
)  # fmt: skip

if TYPE_CHECKING:
    from tree_sitter import Node


Named = TypeVar("Named")  # what a name of Go stands for


class GoReader(Generic[Named]):
    """Write the Python of a Go program, in either form: lines under comments with the Go lines, and unique names."""

    def __init__(self, program: GoProgram, reserved: set[str]) -> None:
        self.program = program
        self.taken = reserved  # names of Python
        self.lines: list[str] = []
        self.indent = 0
        self.scopes: list[dict[str, Named]] = [{}]
        self.told: list[Node] = []  # whom observers are told of
        self.targets: list[Node] = []  # whom decisions name

    def emit(self, code: str) -> None:
        """Add a line of Python at the current indentation."""
        self.lines.append("    " * self.indent + code)

    def tell(self, node: Node, whole: bool = True) -> None:
        """Add the Go lines of a statement as comments: all of them, or the first line alone."""
        lines = self.program.lines_of(node)
        for place, text in enumerate(lines if whole else lines[:1]):
            self.emit(f"# {self.program.line(node) + place}: {text.strip()}")

    def fresh(self, name: str) -> str:
        """Return a Python name that is not yet taken."""
        name = f"{name}_" if keyword.iskeyword(name) or name.startswith("_") else name
        free, number = name, 2
        while free in self.taken:
            free, number = f"{name}_{number}", number + 1
        self.taken.add(free)
        return free

    def find(self, name: str) -> Named | None:
        """Return the meaning of a name in the innermost scope that has it; None if no scope has it."""
        return next((scope[name] for scope in reversed(self.scopes) if name in scope), None)

    def package_of(self, operand: Node) -> str:
        """Return the package named before a dot; empty if the operand is a variable or another expression."""
        is_package = operand.type == "identifier" and self.find(text_of(operand)) is None
        return text_of(operand) if is_package else ""

    def run(self, statements: list[Node]) -> None:
        """Translate statements in their order."""
        for node in statements:
            method = getattr(self, f"do_{node.type}", None)
            if method is None:
                self.program.refuse(node, "this statement is not read")
            method(node)

    def decided(self, decision: Node) -> Node:
        """Record and return the instance that a decision names."""
        target = None
        if decision.type == "call_expression":
            if text_of(field(decision, "function")).removeprefix("sim.") in DECISIONS:
                target = items(field(decision, "arguments"))[0]
        elif (
            decision.type == "composite_literal"
            and text_of(field(decision, "type")).removeprefix("sim.") == "RoutingDecision"
        ):
            pairs = [items(part) for part in items(field(decision, "body"))]
            named = {text_of(pair[0]): items(pair[1])[0] for pair in pairs if len(pair) == 2}
            target = named.get("TargetInstance")
        if target is None:
            self.program.refuse(decision, "a decision that names no instance is not read")
        self.targets.append(target)
        return target

    def tell_observers(self, function: Node, loop: Node) -> None:
        """Record the instance that a loop over the observers reports; refuse the loop behind an early return."""
        if any(
            node.type == "return_statement"
            and node.start_byte < loop.start_byte
            and owner_of(node) == function
            for node in walk(function)
        ):
            self.program.refuse(
                loop, "a return before the observers are told is not read: prefix-affinity would miss the request",
            )  # fmt: skip
        self.tell(loop)
        calls = (node for node in walk(field(loop, "body")) if node.type == "call_expression")
        self.told += [items(field(call, "arguments"))[-1] for call in calls]

    def check_observers(self) -> None:
        """Refuse a program that reports to the observers another instance than the chosen one."""
        targets = {text_of(target) for target in self.targets}
        others = [told for told in self.told if {text_of(told)} != targets]
        if others or len(self.told) > 1:
            self.program.refuse(
                (others or self.told)[0],
                "observers are told of another instance than the one that is chosen",
            )


_HEAD = '''\
"""The routing function of {name}.

Read from Go by `blis-jax evolve read`{form}; `# n:` is line n of {name}. Run it as
`--routing-policy {module}.py:route`{scorers}.
{notes}"""

{imports}


'''


def head_of(
    program: GoProgram,
    module: str,
    imports: str,
    *,
    reads_scorers: bool,
    notes: Sequence[str] = (),
    form: str = "",
) -> str:
    """Return the head of the policy's file: its origin, how to run it, notes and imports."""
    return _HEAD.format(
        name=program.name, module=module, imports=imports, form=form,
        scorers=" with its `--routing-scorers`" if reads_scorers else "",
        notes="".join(f"{note}.\n" for note in (*notes, *program.notes)),
    )  # fmt: skip


# --- values --------------------------------------------------------------------------------------


INSTANCE, SCORER, CLASS, LIST, FIXED = "instance", "scorer", "class", "list", "fixed"
NUMBERS = ("int", "float")
DTYPES = {"int": "INT", "float": "REAL", "bool": "bool", "id": "INT", "snap": "INT"}
EMPTY = {"int": "0", "float": "0.0", "bool": "False", "id": "-1", "snap": "-1"}
GO_TYPES = {
    "int": "int", "int64": "int", "int32": "int", "float64": "float", "bool": "bool", "RoutingSnapshot": "snap",
}  # fmt: skip
MATH = {
    "MaxFloat64": Fraction(1.7976931348623157e308), "SmallestNonzeroFloat64": Fraction(5e-324),
    "MaxInt": Fraction(2**63 - 1), "MaxInt64": Fraction(2**63 - 1), "MinInt64": Fraction(-(2**63)),
    "MinInt": Fraction(-(2**63)), "MaxInt32": Fraction(2**31 - 1), "MinInt32": Fraction(-(2**31)),
    "Pi": Fraction("3.14159265358979323846264338327950288419716939937510582097494459"),
    "E": Fraction("2.71828182845904523536028747135266249775724709369995957496696763"),
    "Ln2": Fraction("0.693147180559945309417232121458176568075500134360255254120680009"),
    "Sqrt2": Fraction("1.41421356237309504880168872420969807856967187537694807317667974"),
}  # fmt: skip
WHOLE_MATH = tuple(name for name in MATH if "Int" in name)
FUNCTIONS = {  # of package math: one float64 to another
    "Abs": "jnp.abs", "Sqrt": "jnp.sqrt", "Exp": "jnp.exp", "Exp2": "jnp.exp2", "Expm1": "jnp.expm1",
    "Log": "jnp.log", "Log2": "jnp.log2", "Log10": "jnp.log10", "Log1p": "jnp.log1p", "Floor": "jnp.floor",
    "Round": "rounded", "RoundToEven": "jnp.round", "Sin": "jnp.sin", "Cos": "jnp.cos", "Atan": "jnp.arctan",
    "Ceil": "jnp.ceil", "Trunc": "jnp.trunc", "Tanh": "jnp.tanh", "Cbrt": "jnp.cbrt",
}  # fmt: skip
PAIRS = {
    "Max": "jnp.maximum",
    "Min": "jnp.minimum",
    "Pow": "jnp.power",
    "Hypot": "jnp.hypot",
    "Mod": "jnp.fmod",
}
FIELDS = {  # of a snapshot: the vector, its kind
    name: (vector, "float" if name in ("KVUtilization", "CacheHitRate") else "int")
    for name, vector in running.SNAPSHOT_FIELDS.items()
}


@dataclass(frozen=True)
class GoValue:
    """A translated expression; `kind` is that of a container's elements, `axes` index the container."""

    code: str
    kind: str
    axes: tuple[str, ...] = ()
    const: Fraction | bool | str | None = None
    is_untyped: bool = False  # a constant that takes the type of what it meets
    is_static: bool = False  # a number of Python, the same in every run
    is_own: bool = False  # in a loop over instances: the instance that it is about
    extent: str = ""  # an axis whose length it is
    has: str = ""  # of a map: which keys it has
    is_map: bool = False
    is_alias: bool = False  # a container that another name or the router has too

    @property
    def is_list(self) -> bool:
        """Return whether the value is a slice that grows."""
        return self.axes == (LIST,)

    def named(self, name: str, keeps: bool) -> GoValue:
        """Return a variable with this value; `keeps=False` drops facts that do not outlive another assignment."""
        return GoValue(
            name, self.kind, self.axes,
            is_own=self.is_own and keeps, extent=self.extent * keeps, has=self.has,
            is_map=self.is_map, is_alias=self.is_alias,
        )  # fmt: skip


def constant(value: Fraction | int, kind: str) -> GoValue:
    """Return an untyped numeric constant."""
    return typed(GoValue("", kind, const=Fraction(value), is_untyped=True), kind)


def typed(value: GoValue, kind: str) -> GoValue:
    """Return an untyped constant as a number of the given kind; its code is a Python number."""
    assert isinstance(value.const, Fraction)
    if kind == "float":
        try:
            number = repr(float(value.const))
        except OverflowError:
            number = "jnp.inf"
    else:
        number = str(int(value.const))
    return replace(value, code=number, kind=kind)


def truth(value: bool) -> GoValue:
    """Return a constant bool."""
    return GoValue(str(value), "bool", const=value)


def array(value: GoValue) -> str:
    """Return the code of a value as an array of its dtype, so that no Python constant stays in a variable."""
    if value.axes or not (value.is_static or value.const is not None):
        return value.code
    return f"jnp.asarray({value.code}, {DTYPES[value.kind]})"


def class_code(text: str) -> int:
    """Return the index of a class in `SLO_CLASSES`; -1 for any other text."""
    return SLO_CLASSES.index(text) if text in SLO_CLASSES else -1


# --- a function as vectors --------------------------------------------------------------------------


_OURS = (
    "go", "jnp", "params", "state", "context", "route", "done", "bool", "range", "none_used", "routing_policy",
)  # fmt: skip


@dataclass
class MaskedBlock:
    """A block under a mask; `flags` are the flags that may have been set after the mask was computed."""

    mask: str
    flags: list[str] = made_of(default_factory=list)
    loop: str = ""  # the name behind the flags of the loop whose body it is
    is_function: bool = False


class VectorWriter(GoReader["GoValue"]):
    """Write the Python of one function: its lines, its names, and the mask of the present statement."""

    def __init__(self, program: GoProgram, root: Node) -> None:
        super().__init__(
            program, {*_OURS, *running.__all__, *(f"answer_{place}" for place in range(9))}
        )
        self.root = root
        self.indent = 1
        self.frames = [MaskedBlock("", is_function=True)]
        self.returned: list[GoValue] = []
        self.captured = 0  # scopes below this one are another function's
        self.reassigned = set(_assigned(root))
        self.elements = [
            node for node in walk(root) if node.type == "index_expression" and _is_target(node)
        ]
        returns = [
            node
            for node in walk(root)
            if node.type == "return_statement" and owner_of(node) == root
        ]
        body = statements_of(field(root, "body"))
        self.returns_early = len(returns) > 1 or (bool(returns) and returns[0] != body[-1])
        # by the code of a call that returns several values: these
        self.several: dict[str, tuple[GoValue, ...]] = {}
        # with what they may mention
        self.closures: dict[str, tuple[Node, list[dict[str, GoValue]]]] = {}

    def refuse(self, node: Node, what: str) -> GoValue:
        """Refuse the program at a node; typed so that callers can return the result."""
        self.program.refuse(node, what)

    # --- lines, names, masks ----------------------------------------------------------------------

    @property
    def mask(self) -> str:
        """Return the code of the mask under which the present statement is executed; empty means always."""
        frame = self.frames[-1]
        parts = [frame.mask] * bool(frame.mask) + [f"~{flag}" for flag in frame.flags]
        return " & ".join(parts)

    def set_flag(self, name: str, upto: str) -> None:
        """Set a flag that skips the rest of a loop, or of the function where `upto` is empty."""
        self.emit(f"{name} = {name} | {self.mask}" if self.mask else f"{name} = jnp.bool_(True)")
        for frame in reversed(self.frames):
            if name not in frame.flags:
                frame.flags.append(name)
            if frame.is_function or (upto and frame.loop == upto):
                return

    @contextmanager
    def block(self, mask: str, loop: str = "") -> Iterator[None]:
        """Translate the statements of the `with` block under a mask, in a scope of their own."""
        self.scopes.append({})
        self.frames.append(MaskedBlock(mask, loop=loop))
        yield
        self.frames.pop()
        self.scopes.pop()

    def under(self, node: Node, condition: str, word: str) -> str:
        """Assign the mask of a branch to a new variable; return its name."""
        mask = f"{self.mask} & ({condition})" if self.mask else condition
        name = self.fresh(f"{word}_{self.program.line(node)}")
        self.emit(f"{name} = {mask}")
        return name


# --- what a tree says of names --------------------------------------------------------------------


def _assigned(root: Node) -> Iterator[str]:
    """Yield the names that are assigned after their declaration, or declared more than once."""
    declared: set[str] = set()
    for node in walk(root):
        if node.type == "assignment_statement":
            yield from (text_of(target) for target in items(field(node, "left")))
        elif node.type in ("inc_statement", "dec_statement"):
            yield text_of(items(node)[0])
        elif node.type == "short_var_declaration":
            names = [text_of(target) for target in items(field(node, "left"))]
            if len(names) > 1:
                yield from (name for name in names if name in declared)
            declared.update(names)


def _is_target(node: Node) -> bool:
    """Return whether an element expression is the target of an assignment."""
    parent = node.parent
    if parent is None or parent.type == "index_expression":
        return False
    if parent.type in ("inc_statement", "dec_statement"):
        return True
    above = parent.parent
    return (
        parent.type == "expression_list"
        and above is not None
        and above.type == "assignment_statement"
        and field(above, "left") == parent
    )
