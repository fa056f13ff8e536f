"""Trace policies to jaxprs: from shapes alone, at two numbers of endpoints, with a name for every input."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from blis_jax.core.types import EngineShape
from blis_jax.policies.contexts import GatewayContext, QueueContext
from blis_jax.policies.contract import Policy
from blis_jax.policies.reading import CACHES, CPU_TIER, PROMPT_TIME
from blis_jax.policies.scenes import scene_of
from sweeps.promote.golang.graph import Graph, Node
from sweeps.promote.golang.lowering import (
    INLINED,
    SIZES,
    Lowering,
    check_dtypes,
    place_of_function,
    place_of_policy,
)
from sweeps.promote.golang.structure import FOLDS
from sweeps.promote.golang.values import ENDPOINTS, Value, value_of
from sweeps.promote.promotion import NotMappedError

_DRAW = "_uniform"  # what JAX calls the function that draws
IS_TRUE = ("context.snapshots.is_active",)  # the router's list holds active endpoints only
_NOT_IN_A_ROUTER = {
    PROMPT_TIME: "the simulator's step times",
    "draws": "BLIS's seeded stream",
    CACHES: "BLIS's copy of the KV caches",
}


@dataclass(frozen=True)
class PromotedRule:
    """Hold the source of one plugin: a policy, or a priority with the scheduler that reads it."""

    kind: str  # scorer, admission, routing or order
    name: str  # in the simulator
    policies: tuple[Policy, ...]
    has_cpu_tier: bool = False  # of the simulated cluster: only then its signals are there
    revision: str = ""  # of the simulated cluster: in some, a signal counts other things

    @property
    def what(self) -> str:
        """Return the rule's kind and name, for messages."""
        return f"{self.kind} {self.name}"

    @property
    def is_order(self) -> bool:
        """Return whether the rule compares two requests, so that traced slots are requests."""
        return self.kind == "order"


@dataclass(frozen=True)
class Compiled:
    """Hold the graph of a rule: its decisions, its next state and its first state."""

    rule: PromotedRule
    graph: Graph
    decisions: tuple[Node, ...]
    state: dict[str, Node]  # after the decision, by field
    start: dict[str, Node]  # before the first

    @property
    def outputs(self) -> tuple[Node, ...]:
        """Return all values that the plugin computes for a decision: decisions and next state."""
        return (*self.decisions, *self.state.values())


def compiled(rule: PromotedRule) -> Compiled:
    """Compile a rule to a graph.

    Raises:
        NotMappedError: the policy does something that no plugin can do; the sentence names the line.
    """
    for policy in rule.policies:
        if policy.observe is not None:
            raise NotMappedError(
                f"{rule.what}: it is told of completions at {place_of_function(policy.observe)}, "
                "and no plugin of the router hears of them with these numbers; leave the observer out, or write a "
                "Map C row and a hypothesis of track B"
            )
        what = next(
            (words for signal, words in _NOT_IN_A_ROUTER.items() if policy.reads(signal)), None
        )
        if what is not None:
            raise NotMappedError(
                f"{rule.what}: at {place_of_policy(policy)} it reads {what}, which no plugin of the router is given; "
                "take a policy without it"
            )
    with jax.enable_x64(True):
        return _compiled(rule)


def _compiled(rule: PromotedRule) -> Compiled:
    graph = Graph(FOLDS, rule.is_order)
    lowering = Lowering(graph, SIZES, rule.what, place_of_policy(rule.policies[0]))
    small, large = (decide_jaxpr(rule, size) for size in SIZES)
    inputs = [
        _input(graph, rule, path, first, other)
        for path, first, other in zip(
            small.paths, small.jaxpr.in_avals, large.jaxpr.in_avals, strict=True
        )
    ]
    outputs = lowering.outputs((small.jaxpr, large.jaxpr), inputs)
    graph.names |= lowering.origins.names()
    num_decisions = 2 if rule.is_order else 1
    decisions = tuple(value.node for value in outputs[:num_decisions])
    fields = [path.partition(".")[2] for path in small.paths if path.startswith("state.")]
    state = dict(zip(fields, (value.node for value in outputs[num_decisions:]), strict=True))
    start = _first_state(rule, graph, lowering) if fields else {}
    result = Compiled(rule, graph, decisions, state, start)
    check_dtypes([node for node in result.outputs if node.dtype != "key"], rule.what)
    return result


def _first_state(rule: PromotedRule, graph: Graph, lowering: Lowering) -> dict[str, Node]:
    (policy,) = rule.policies
    jaxprs = []
    for size in SIZES:
        shape = _shape(size)
        jaxprs.append(
            jax.make_jaxpr(lambda params, shape=shape: policy.start(params, shape))(policy.values())
        )
    paths = _paths("params", policy.values())
    inputs = [
        value_of((), graph.make("param", (), (path.partition(".")[2],), "float64", 0))
        for path in paths
    ]
    outputs = lowering.outputs((jaxprs[0], jaxprs[1]), inputs)
    state = policy.start(policy.values(), _shape(SIZES[0]))
    names = [path.partition(".")[2] for path in _paths("state", state)]
    return dict(zip(names, (value.node for value in outputs), strict=True))


def _input(graph: Graph, rule: PromotedRule, path: str, first: Any, other: Any) -> Value:
    shape = tuple(
        int(a) if a == b else ENDPOINTS for a, b in zip(first.shape, other.shape, strict=True)
    )
    dtype = "key" if str(first.dtype).startswith("key<") else str(first.dtype)
    if path in IS_TRUE:
        return value_of(shape, graph.literal(True, "bool"))
    sort, _, rest = path.partition(".")
    if sort == "state" and shape:
        raise NotMappedError(
            f"{rule.what}: its state {rest} at {place_of_policy(rule.policies[0])} is an array, "
            "but endpoints and prompts come and go in a router; keep scalars in the state, or leave out this policy "
            "and write a Map C row"
        )
    if sort in ("params", "state"):
        return value_of(
            shape, graph.make({"params": "param"}.get(sort, sort), (), (rest,), dtype, 0)
        )
    name = rest
    rank = 0 if rule.is_order else sum(length == ENDPOINTS for length in shape)
    fixed = [length for length in shape if isinstance(length, int)]
    count = 1
    for length in fixed:
        count *= length
    nodes = [
        graph.make("input", (), (name, at) if fixed else (name,), dtype, rank)
        for at in range(count)
    ]
    return value_of(shape, nodes)


# --- what is traced -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Traced:
    """Hold a jaxpr with the names of its inputs: `params.x`, `state.x` and `context.x`."""

    jaxpr: Any  # closed
    paths: tuple[str, ...]
    arguments: tuple[Any, ...]  # params, state, context: shapes


def decide_jaxpr(rule: PromotedRule, size: int) -> Traced:
    """Trace the rule's decision at `size` endpoints, or for an order at `size` requests."""
    function, arguments = _order(rule, size) if rule.is_order else _at_gateway(rule, size)
    jaxpr = jax.make_jaxpr(function)(*arguments)
    names = ("params", "state", "context")
    paths = [
        path
        for name, argument in zip(names, arguments, strict=True)
        for path in _paths(name, argument)
    ]
    return Traced(jaxpr, tuple(paths), arguments)


def _at_gateway(rule: PromotedRule, size: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    (policy,) = rule.policies
    params = _shapes(policy.values())
    state = jax.eval_shape(lambda values: policy.start(values, _shape(size)), params)
    return policy.decide, (params, state, gateway_context(policy, size, rule.has_cpu_tier))


def _order(rule: PromotedRule, size: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    priority, scheduler = rule.policies
    for policy in rule.policies:
        state = policy.start(policy.values(), _shape(size))
        if jax.tree_util.tree_leaves(state):
            raise NotMappedError(
                f"{rule.what}: {policy.name} at {place_of_policy(policy)} keeps a state, and the order of "
                "a queue may not change by being asked; leave the state out, or keep the policy in the engine and "
                "write a Map C row"
            )

    def decide(params: Any, state: Any, context: QueueContext) -> Any:
        """Return the scheduler's order by the priority policy's urgency, both from their first states."""
        none = [
            policy.start(values, _shape(size))
            for policy, values in zip(rule.policies, params, strict=True)
        ]
        urgency, _ = priority.decide(params[0], none[0], context)
        with_urgency = QueueContext(
            **{
                name: getattr(context, name)
                for name in QueueContext.__dataclass_fields__
                if name != "priority"
            },
            priority=urgency,
        )
        order, _ = scheduler.decide(params[1], none[1], with_urgency)
        return order, state

    params = tuple(_shapes(policy.values()) for policy in rule.policies)
    context = _only_read(rule.policies, scene_of(scheduler.kind, slots=size))
    return decide, (params, (), dataclasses.replace(context, priority=None))


def gateway_context(policy: Policy, size: int, has_cpu_tier: bool) -> GatewayContext:
    """Return the context of a gateway policy as shapes."""
    context = _only_read((policy,), scene_of(policy.kind, size, slots=1))
    tier = () if has_cpu_tier else CPU_TIER
    nothing = {signal.rpartition(".")[2]: None for signal in (*tier, CACHES, PROMPT_TIME)}
    seen = dataclasses.replace(context.snapshots, **nothing)
    moving = dict.fromkeys(("came_from", "computed_tokens", "is_decode"))
    return dataclasses.replace(context, snapshots=seen, draws=None, **moving)


def _only_read(policies: tuple[Policy, ...], context: Any) -> Any:
    """Return the context without the structures that no policy reads."""
    names = ("contents", "outstanding")
    there = [name for name in names if hasattr(context, name)]
    unread = [name for name in there if not any(policy.reads(name) for policy in policies)]
    return dataclasses.replace(context, **dict.fromkeys(unread))


def _scalar(dtype: Any) -> Any:
    return jax.ShapeDtypeStruct((), dtype)


def _shapes(params: Any) -> Any:
    return jax.tree_util.tree_map(lambda _: _scalar(jnp.float64), params)


def _shape(size: int) -> EngineShape:
    return EngineShape(num_instances=size, num_slots=1, num_requests=1, num_nodes=1, path_depth=1)


def _paths(name: str, tree: Any) -> list[str]:
    """Return a dotted name for each leaf of a tree; a tuple's elements are named by their index."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return [f"{name}.{_dotted(path)}" for path, _ in leaves]


def _dotted(path: Any) -> str:
    return ".".join(str(getattr(part, "name", getattr(part, "idx", part))) for part in path)


class FlatJaxpr:
    """Hold the equations of a closed jaxpr with calls inlined.

    Attributes:
        equations: all equations, in order.
        constants: the values of the constant variables.
        outputs: the variables or literals that the jaxpr returns.
    """

    def __init__(self, jaxpr: Any, whole: Sequence[str] = ()) -> None:
        """Flatten a closed jaxpr; calls of functions named in `whole` are not inlined."""
        self.equations: list[core.JaxprEqn] = []
        self.constants = dict(zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True))
        self._whole = whole
        self.outputs = self._run(jaxpr.jaxpr, jaxpr.jaxpr.constvars, jaxpr.jaxpr.invars)

    def _run(self, jaxpr: Any, constants: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
        """Add the equations of a function with its calls inlined; return the function's results."""
        known = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*constants, *arguments), strict=True))

        def of(atom: Any) -> Any:
            return known.get(atom, atom) if isinstance(atom, core.Var) else atom

        for equation in jaxpr.eqns:
            operands, params = [of(atom) for atom in equation.invars], equation.params
            inner: Any = params.get("jaxpr") or params.get("call_jaxpr")
            is_call = equation.primitive.name in INLINED and params.get("name") not in self._whole
            if inner is not None and is_call:
                body = getattr(inner, "jaxpr", inner)
                fresh = [core.Var(variable.aval) for variable in body.constvars]
                self.constants |= zip(fresh, getattr(inner, "consts", ()), strict=True)
                made = self._run(body, fresh, operands)
            else:
                made = [core.Var(variable.aval) for variable in equation.outvars]
                self.equations.append(equation.replace(invars=operands, outvars=made))
            known |= zip(equation.outvars, made, strict=True)
        return [of(atom) for atom in jaxpr.outvars]


def evaluated(jaxpr: Any, arguments: Sequence[Any], draws: Iterator[Any]) -> list[Any]:
    """Evaluate a closed jaxpr equation by equation, with `draws` in place of `jax.random.uniform`; return the results.

    Nothing is fused: every operation is rounded on its own. Draws with one key are equal, as in the compiled graph.
    """
    flat = FlatJaxpr(jaxpr, whole=(_DRAW,))
    known = flat.constants | dict(zip(jaxpr.jaxpr.invars, arguments, strict=True))
    drawn: dict[Any, tuple[Any, Any]] = {}  # with the key, so that its id stays its own

    def read(atom: Any) -> Any:
        return atom.val if hasattr(atom, "val") else known[atom]

    for equation in flat.equations:
        values = list(map(read, equation.invars))
        if equation.params.get("name") == _DRAW:
            aval: Any = equation.outvars[0].aval
            key = (id(values[0]), aval.shape)
            if key not in drawn:
                drawn[key] = values[0], next(draws)
            results = [_between(drawn[key][1], *values[1:])]
        else:
            made = equation.primitive.bind(*values, **equation.params)
            results = made if equation.primitive.multiple_results else [made]
        known.update(zip(equation.outvars, results, strict=True))
    return list(map(read, flat.outputs))


def _between(number: Any, low: Any, high: Any) -> Any:
    if low == 0.0 and high == 1.0:
        return number
    return jnp.maximum(low, number * (high - low) + low)
