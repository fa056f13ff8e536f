"""Turn a routing policy into a table of operations, or say why it must be compiled instead."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np

from blis_jax.core.exact import runtime_infinity
from blis_jax.core.types import EngineShape
from blis_jax.policies.as_data.graph import (
    CONSTANT,
    INPUT,
    TRUTH,
    Cells,
    Expression,
    ExpressionGraph,
    RouterStream,
    assembled,
    bare,
    grid,
    has_instances,
)
from blis_jax.policies.as_data.interpreter import (
    NUM_STATES,
    OperationTable,
    TableForm,
    TablePolicy,
    interpreter,
)
from blis_jax.policies.as_data.lowering import INFINITY, NUM_DRAWS, Tabulation
from blis_jax.policies.as_data.operations import CODES
from blis_jax.policies.contract import Policy
from blis_jax.policies.reading import MATCH, NotAsDataError, Unread, UnreadSignal, register
from blis_jax.policies.scenes import PATH, SLOTS, answered, array_of, scene_of

# operations, registers and constants of a table: the smallest that hold it, so that most programs share one engine
SIZES = ((2048, 384, 96), (8192, 2048, 512))


def as_table(policy: Policy, num_instances: int, num_scorers: int) -> TablePolicy:
    """Return a routing policy as a table, for clusters of `num_instances` instances and `num_scorers` scorers.

    Raises:
        NotAsDataError: the policy has no form as a table, so it must be compiled; the message says why.
    """
    if policy.observe is not None or policy.hands is not None:
        what = "is told of completions" if policy.observe is not None else "hands something over"
        raise NotAsDataError(f"{policy.words} {what}, which a table cannot")
    try:
        try:
            traced = _traced(policy, num_instances, num_scorers, False)
        except UnreadSignal as error:
            if error.signal != MATCH:
                raise
            traced = _traced(policy, num_instances, num_scorers, True)
    except UnreadSignal as error:
        raise NotAsDataError(
            f"{policy.words} reads {error.signal}, which is no input of a table"
        ) from None
    except NotAsDataError as error:
        raise NotAsDataError(f"{policy.words}: {error}") from None
    for size in SIZES:
        form = TableForm(*size, num_scorers, traced.has_matches)
        table = _table(form, traced)
        if table is not None:
            made = interpreter(form, num_instances)
            return dataclasses.replace(made, table=table, keeps_own_index=policy.keeps_own_index)
    most = SIZES[-1]
    raise NotAsDataError(
        f"{policy.words} takes more than {most[0]} operations, or {most[2]} constants"
    )


class _Traced(NamedTuple):
    """The nodes of a decision and of the next state, and the bits of the first state."""

    decision: Expression
    states: list[Expression]
    start: list[np.ndarray]
    has_matches: bool


def _traced(policy: Policy, num_instances: int, num_scorers: int, has_matches: bool) -> _Traced:
    """Trace a policy and turn its decision, next state and first state into nodes."""
    register()
    graph = ExpressionGraph(num_instances)
    lowering = Tabulation(graph)
    names = set(TableForm(0, 0, 0, num_scorers, has_matches).inputs)
    shape = EngineShape(num_instances, SLOTS, 2 * SLOTS, PATH, PATH, clock="int64")
    shape = dataclasses.replace(shape, num_keys=Unread("shape.num_keys", ""))  # type: ignore[arg-type]
    with jax.enable_x64(True):
        numbers = policy.values()
        first = jax.tree.map(np.asarray, policy.start(numbers, shape))
        context, inputs = _context(graph, num_instances, num_scorers, names, bool(policy.is_random))
        state = [array_of(leaf.dtype, *leaf.shape) for leaf in jax.tree.leaves(first)]

        def decide(infinity: Any, leaves: list[Any], context: Any) -> Any:
            before = jax.tree.unflatten(jax.tree.structure(first), leaves)
            with runtime_infinity(infinity):
                return answered(policy, before, context, policy.decide(numbers, before, context))

        made = jax.make_jaxpr(decide)(array_of(np.float64), state, context)
        infinity = Cells((), np.dtype(np.float64), grid(graph.input(INFINITY, True), ()))
        kept = [_state(graph, at, leaf) for at, leaf in enumerate(jax.tree.leaves(first))]
        decision, *after = lowering.run(made.jaxpr, made.consts, [infinity, *kept, *inputs])
    if len(kept) > NUM_STATES:
        raise NotAsDataError(f"it keeps more than {NUM_STATES} numbers or vectors")
    start = [np.broadcast_to(_bits(leaf), num_instances) for leaf in jax.tree.leaves(first)]
    if decision.shape or decision.is_real:
        raise NotAsDataError(f"it decides {decision.dtype}{list(decision.shape)}")
    return _Traced(bare(decision.node), [bare(leaf.node) for leaf in after], start, has_matches)


def _bits(leaf: np.ndarray) -> np.ndarray:
    return (
        leaf.astype(np.float64).view(np.int64) if leaf.dtype.kind == "f" else leaf.astype(np.int64)
    )


def _state(graph: ExpressionGraph, at: int, leaf: Any) -> Cells:
    is_vector = leaf.shape == (graph.num_instances,)
    if leaf.shape and not is_vector:
        raise NotAsDataError("it keeps an array for other things than instances")
    if leaf.dtype.name not in ("bool", "int32", "int64", "float64"):
        raise NotAsDataError(f"it keeps {leaf.dtype} numbers")
    return Cells(leaf.shape, leaf.dtype, grid(graph.input(f"state.{at}", not is_vector), ()))


def _context(
    graph: ExpressionGraph, num_instances: int, num_scorers: int, names: set[str], is_random: bool
) -> tuple[Any, list[Any]]:
    """Return the context to trace a policy with, without signals that tables lack, and the nodes of its leaves."""
    scene = scene_of("routing", num_instances, SLOTS, "", "int64", max(num_scorers, 1))
    scene = dataclasses.replace(scene, draws=array_of(np.int32, NUM_DRAWS))
    scene = _without_others(scene, "", names | ({"draws"} if is_random else set()))
    inputs: list[Any] = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(scene)[0]:
        name = ".".join(part.name for part in path)
        dtype = np.dtype(leaf.dtype)
        if name == "draws":
            inputs.append(RouterStream())
        elif len(leaf.shape) == 2 or name == "scorer_shares":
            nodes = [
                graph.input(f"{name}.{at}", name == "scorer_shares") for at in range(leaf.shape[0])
            ]
            made = grid(None, (len(nodes),))
            made[:] = nodes
            inputs.append(_vectors(graph, leaf, made))
        else:
            bounds = (
                TRUTH if dtype.kind == "b" else (-(2**31), 2**31 - 1) if dtype == np.int32 else None
            )
            node = graph.input(name, not leaf.shape, *([bounds] if bounds else []))
            inputs.append(Cells(tuple(leaf.shape), dtype, grid(node, ())))
    return scene, inputs


def _vectors(graph: ExpressionGraph, leaf: Any, nodes: np.ndarray) -> Cells:
    """Return the array of vectors or scalars in `nodes`; scalars form a vector if there is one per instance."""
    shape, dtype = tuple(leaf.shape), np.dtype(leaf.dtype)
    if len(shape) == 2 or not has_instances(shape, graph):
        return Cells(shape, dtype, nodes)
    return assembled(nodes, dtype, graph)


def _without_others(part: Any, owner: str, names: set[str]) -> Any:
    """Return the context, or a part of it, reduced to the inputs that a table has."""
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(part):
        name = f"{owner}{field.name}"
        value = getattr(part, field.name)
        is_input = name in names or f"{name}.0" in names
        if name in ("snapshots.pending_transfer_us", "snapshots.kv_thrashing_rate"):
            changed[field.name] = None
        elif name in ("snapshots", "request"):
            changed[field.name] = _without_others(value, f"{name}.", names)
        elif not is_input:
            changed[field.name] = Unread(name, "")
    return dataclasses.replace(part, **changed)


# --- numbers of registers -------------------------------------------------------------------------


def _table(form: TableForm, traced: _Traced) -> OperationTable | None:
    """Return the nodes as a table; None if they exceed the sizes of the form."""
    decision, states, start, _ = traced
    outputs = [decision, *states]
    order = _ordered(outputs)
    constants = [node for node in order if node.operation == CONSTANT]
    made = [node for node in order if node.operation not in (CONSTANT, INPUT)]
    if len(constants) > form.num_constants or len(made) > form.num_operations:
        return None
    inputs = {name: at for at, name in enumerate(form.inputs)}
    place = {id(node): len(inputs) + at for at, node in enumerate(constants)}
    place |= {id(node): inputs[str(node.what)] for node in order if node.operation == INPUT}
    last_use = {id(operand): at for at, node in enumerate(made) for operand in node.operands}
    last_use |= {id(node): len(made) for node in outputs}
    free = list(range(form.num_registers - 1, len(inputs) + form.num_constants - 1, -1))
    code: list[tuple[int, int, int, int, int]] = []
    for at, node in enumerate(made):
        operands = [place[id(operand)] for operand in node.operands]
        if not free:
            return None
        place[id(node)] = free.pop()
        a, b, c = (operands + operands[-1:] * 2)[:3]
        code.append((CODES[node.operation], place[id(node)], a, b, c))
        for used in {id(x): x for x in node.operands}.values():
            if last_use[id(used)] == at and used.operation not in (CONSTANT, INPUT):
                free.append(place[id(used)])
    rows = tuple(tuple(int(bit) for bit in row) for row in start)
    return OperationTable(
        tuple(code), tuple(int(node.what) for node in constants), place[id(decision)],
        tuple(place[id(node)] for node in states), rows,
    )  # fmt: skip


def _ordered(outputs: list[Expression]) -> list[Expression]:
    """Return the nodes on which the outputs depend, operands first."""
    order: dict[int, Expression] = {}
    for output in outputs:
        waiting = [(output, False)]
        while waiting:
            node, is_ready = waiting.pop()
            if id(node) in order:
                continue
            if is_ready:
                order[id(node)] = node
            else:
                waiting.append((node, True))
                waiting += [(operand, False) for operand in reversed(node.operands)]
    return list(order.values())
