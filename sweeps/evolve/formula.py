"""Formulas that score instances, as bred by a search without a language model; the best active instance is chosen.

Each formula can be written as a policy in Python, which the search runs, and as a block of Go that decides alike.
"""

from __future__ import annotations

import ast
import operator
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

NUMBER, SCORER = "number", "scorer"
# name: how Python and Go write it of an instance or of the request
SIGNALS = {
    "load": ("seen.effective_load.astype(jnp.float64)", "float64(snap.EffectiveLoad())"),
    "queue": ("seen.queue_depth.astype(jnp.float64)", "float64(snap.QueueDepth)"),
    "running": ("seen.batch_size.astype(jnp.float64)", "float64(snap.BatchSize)"),
    "in_flight": ("seen.num_pending.astype(jnp.float64)", "float64(snap.InFlightRequests)"),
    "kv": ("seen.kv_utilization", "snap.KVUtilization"),
    "prompt": ("request.input_len.astype(jnp.float64)", "float64(len(req.InputTokens))"),
    "critical": (
        "jnp.where(request.slo_class == CRITICAL, 1.0, 0.0)",
        'req.SLOClass == "critical"',
    ),
}
# name: number of parts, and how Python and Go compute it
OPERATIONS = {
    "plus": (2, "{} + {}", "{} + {}"),
    "minus": (2, "{} - {}", "{} - {}"),
    "times": (2, "exact_product({}, {})", "float64({} * {})"),
    "over": (2, "exact_quotient({}, 1.0 + jnp.abs({}))", "{} / (1.0 + math.Abs({}))"),
    "smaller": (2, "jnp.minimum({}, {})", "math.Min({}, {})"),
    "larger": (2, "jnp.maximum({}, {})", "math.Max({}, {})"),
    "below": (4, "jnp.where({} < {}, {}, {})", ""),
    "least": (1, "jnp.min(jnp.where(seen.is_active, {}, jnp.inf))", "Min"),
    "most": (1, "jnp.max(jnp.where(seen.is_active, {}, -jnp.inf))", "Max"),
}  # fmt: skip
KNOWN: dict[str, Callable[..., float]] = {
    "plus": operator.add, "minus": operator.sub, "times": operator.mul, "smaller": min, "larger": max,
    "over": lambda first, other: first / (1.0 + abs(other)),
}  # fmt: skip
SUMS = ("plus", "minus")
INLINE = 40  # letters of a part that gets no name
ACROSS = ("least", "most")
OF_INSTANCE = ("load", "queue", "running", "in_flight", "kv")
NUMBERS = (0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0, 1000.0)
_PYTHON = '''\
"""A router that `blis-jax evolve search` found."""

import jax.numpy as jnp

from blis_jax.core.exact import exact_product, exact_quotient
from blis_jax.core.types import CRITICAL
from blis_jax.policies import routing_policy
from blis_jax.policies.routing.pickers import first_best_of


@routing_policy()
def route(params, state, context):
    """Choose the first active instance with the highest score."""
    seen, request = context.snapshots, context.request
{lines}
    score = jnp.broadcast_to({last}, seen.is_active.shape)
    return first_best_of(score, seen.is_active), state
'''
_GO = """\
	// EVOLVE-BLOCK-START
{lines}
	bestIdx, bestScore := 0, math.Inf(-1)
	for i, snap := range snapshots {{
{score}
		if score := {last}; score > bestScore {{
			bestScore = score
			bestIdx = i
		}}
	}}
	// EVOLVE-BLOCK-END
"""


@dataclass(frozen=True)
class Formula:
    """A signal, a scorer's score, a number, or an operation on formulas.

    Attributes:
        name: a key of `SIGNALS` or `OPERATIONS`, or `scorer` or `number`.
        parts: the operands of an operation.
        number: the value of a number, or the index of a scorer.
    """

    name: str
    parts: tuple[Formula, ...] = ()
    number: float = 0.0

    @classmethod
    def read(cls, text: str) -> Formula:
        """Parse a formula from the line that `str` writes."""

        def formula_of(node: ast.expr) -> Formula:
            """Return the formula of a node of the parsed line."""
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                return cls(node.func.id, tuple(map(formula_of, node.args)))
            if isinstance(node, ast.Name):
                scorer = node.id.removeprefix(SCORER)
                return cls(SCORER, number=float(scorer)) if scorer.isdigit() else cls(node.id)
            return cls(NUMBER, number=float(ast.literal_eval(node)))

        return formula_of(ast.parse(text, mode="eval").body)

    @property
    def size(self) -> int:
        """Return the number of different subformulas, the formula itself included."""
        return len({self.at(place) for place in self.places()})

    @property
    def tells_apart(self) -> bool:
        """Return whether the value can differ between instances; if not, every request goes to the first instance."""
        differs = self.name == SCORER or self.name in OF_INSTANCE
        return differs or (self.name not in ACROSS and any(part.tells_apart for part in self.parts))

    def __str__(self) -> str:
        """Return the formula as one line of text."""
        if self.name == NUMBER:
            return f"{self.number:g}"
        if self.name == SCORER:
            return f"scorer{self.number:g}"
        return f"{self.name}({', '.join(map(str, self.parts))})" if self.parts else self.name

    def places(self) -> Iterator[tuple[int, ...]]:
        """Yield the path to each subformula, as indexes from the root; the formula itself is `()`."""
        yield ()
        for at, part in enumerate(self.parts):
            for rest in part.places():
                yield (at, *rest)

    def at(self, place: tuple[int, ...]) -> Formula:
        """Return the subformula at a path."""
        return self.parts[place[0]].at(place[1:]) if place else self

    def with_part(self, place: tuple[int, ...], part: Formula) -> Formula:
        """Return the formula with the subformula at a path replaced by `part`."""
        if not place:
            return part
        parts = list(self.parts)
        parts[place[0]] = parts[place[0]].with_part(place[1:], part)
        return replace(self, parts=tuple(parts))


def drawn(rng: np.random.Generator, num_scorers: int, depth: int) -> Formula:
    """Draw a random formula at most `depth` operations deep."""
    if depth == 0 or rng.random() < 0.15:
        kind = rng.integers(3)
        if kind == 0:
            return Formula(NUMBER, number=float(rng.choice(NUMBERS)))
        if kind == 1 and num_scorers:
            return Formula(SCORER, number=float(rng.integers(num_scorers)))
        return Formula(str(rng.choice(list(SIGNALS))))
    name = str(rng.choice(list(OPERATIONS)))
    parts = (drawn(rng, num_scorers, depth - 1) for _ in range(OPERATIONS[name][0]))
    return Formula(name, tuple(parts))


def child_of(
    rng: np.random.Generator, first: Formula, second: Formula, num_scorers: int
) -> Formula:
    """Return `first` with one subformula replaced: by one of `second`, by a newly drawn one, or by a changed number."""
    places = list(first.places())
    place, way = places[rng.integers(len(places))], rng.random()
    if way < 0.5:
        others = list(second.places())
        return first.with_part(place, second.at(others[rng.integers(len(others))]))
    if way < 0.8:
        return first.with_part(place, drawn(rng, num_scorers, int(rng.integers(3))))
    numbers = [place for place in places if first.at(place).name == NUMBER]
    if not numbers:
        return Formula("plus", (first, drawn(rng, num_scorers, 1)))
    place = numbers[rng.integers(len(numbers))]
    value = first.at(place).number * float(np.exp(rng.normal(0, 0.5)))
    return first.with_part(place, Formula(NUMBER, number=float(f"{value:.2g}")))


def folded(formula: Formula) -> Formula:
    """Compute operations on constants, and drop maxima and minima over values that are equal on all instances."""
    formula = replace(formula, parts=tuple(map(folded, formula.parts)))
    if formula.name in ACROSS and not formula.parts[0].tells_apart:
        return formula.parts[0]
    if formula.name == "below":
        first, second, yes, no = formula.parts
        if first.name == second.name == NUMBER:
            return yes if first.number < second.number else no
    elif formula.parts and all(part.name == NUMBER for part in formula.parts):
        value = KNOWN[formula.name](*(part.number for part in formula.parts))
        return Formula(NUMBER, number=value)
    return formula


def shorter(formula: Formula) -> Iterator[Formula]:
    """Yield, shortest first, smaller formulas in which one subformula is replaced by one of its parts or by 0."""
    variants = {
        folded(formula.with_part(place, part))
        for place in formula.places()
        for part in (*formula.at(place).parts, Formula(NUMBER))
    }
    smaller = (variant for variant in variants if variant.size < formula.size)
    yield from sorted(smaller, key=lambda variant: (variant.size, str(variant)))


# --- as text --------------------------------------------------------------------------------------


def python_of(formula: Formula) -> str:
    """Return the source of a Python module with the formula as the policy `route`."""
    names: dict[Formula, str] = {}
    lines: list[str] = []
    often = _used_often(formula)

    def name_of(node: Formula) -> str:
        """Return the expression for a subformula; append the line that computes the subformula where one is needed."""
        if node.name == NUMBER:
            return repr(node.number)
        if node not in names:
            parts = [name_of(part) for part in node.parts]
            if node.name == SCORER:
                text = f"context.scorer_scores[{node.number:.0f}]"
            else:
                text = (
                    SIGNALS[node.name][0] if not parts else OPERATIONS[node.name][1].format(*parts)
                )
            if node not in often and len(text) <= INLINE:
                return f"({text})" if node.name in SUMS else text
            names[node] = f"v{len(names)}"
            lines.append(f"    {names[node]} = {text}")
        return names[node]

    last = name_of(formula)
    return _PYTHON.format(lines="\n".join(lines), last=last)


def _used_often(formula: Formula) -> set[Formula]:
    """Return the subformulas that need a variable: those used more than once, scorers, and values across instances."""
    parts = [
        part for around in {formula.at(at) for at in formula.places()} for part in around.parts
    ]
    counts = Counter(parts)
    return {part for part in counts if part.name in (SCORER, *ACROSS) or counts[part] > 1}


def go_of(formula: Formula) -> str:
    """Return the block between the marks of a `routing.go`."""
    writer = _GoWriter(formula)
    score: list[str] = []
    last = writer.value(formula, {}, score)
    return _GO.format(lines="\n".join(writer.before), score="\n".join(score), last=last)


class _GoWriter:
    """Write a formula as Go; values across instances get loops of their own before the loop that chooses."""

    def __init__(self, formula: Formula) -> None:
        scorers = {part.number for part in map(formula.at, formula.places()) if part.name == SCORER}
        self.before = [
            f"\tscorer{at:.0f} := ws.scorers[{at:.0f}](req, snapshots)" for at in sorted(scorers)
        ]
        self.names: dict[Formula, str] = {}  # of values across instances
        self.often = _used_often(formula)

    def value(self, node: Formula, known: dict[Formula, str], lines: list[str]) -> str:
        """Return the expression for a value in one pass over the snapshots; append needed statements to `lines`."""
        if node.name == NUMBER:
            return repr(node.number)
        if node.name in ACROSS:
            return self.names.get(node) or self._across(node)
        if node not in known:
            parts = [self.value(part, known, lines) for part in node.parts]
            is_inside = node not in self.often and node.name not in ("critical", "below")
            if is_inside and node.name != SCORER:
                text = OPERATIONS[node.name][2].format(*parts) if parts else SIGNALS[node.name][1]
                if len(text) <= INLINE:
                    return f"({text})" if node.name in (*SUMS, "over") else text
            known[node] = f"w{len(known)}"
            lines += self._statements(node, known[node], parts)
        return known[node]

    def _statements(self, node: Formula, name: str, parts: list[str]) -> list[str]:
        if node.name == SCORER:
            return [f"\t\t{name} := scorer{node.number:.0f}[snap.ID]"]
        if node.name == "critical":
            condition, other, then = SIGNALS[node.name][1], "0.0", "1.0"
        elif node.name == "below":
            condition, other, then = f"{parts[0]} < {parts[1]}", f"float64({parts[3]})", parts[2]
        else:
            text = OPERATIONS[node.name][2].format(*parts) if parts else SIGNALS[node.name][1]
            return [f"\t\t{name} := {text}"]
        return [
            f"\t\t{name} := {other}", f"\t\tif {condition} {{", f"\t\t\t{name} = {then}", "\t\t}",
        ]  # fmt: skip

    def _across(self, node: Formula) -> str:
        lines: list[str] = []
        value = self.value(node.parts[0], {}, lines)
        name = self.names[node] = f"m{len(self.names)}"
        sign = "1" if node.name == "least" else "-1"
        over = "_, snap := range" if any("snap" in line for line in (*lines, value)) else "range"
        self.before += [
            f"\t{name} := math.Inf({sign})", f"\tfor {over} snapshots {{", *lines,
            f"\t\t{name} = math.{OPERATIONS[node.name][2]}({name}, {value})", "\t}",
        ]  # fmt: skip
        return name
