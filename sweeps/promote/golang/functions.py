"""The Go function compiled from a policy: its signals, its parameters, its state, and its text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.policies.numbers import Number, numbers_of
from sweeps.promote.golang.graph import Node, inputs_of, live
from sweeps.promote.golang.lowering import place_of_policy
from sweeps.promote.golang.statements import Writer
from sweeps.promote.golang.structure import NO_PROPOSAL, PROPOSALS
from sweeps.promote.golang.target import Signal, TargetVersion
from sweeps.promote.golang.terms import HELPERS, Terms, camel, exported
from sweeps.promote.golang.tracing import Compiled, PromotedRule
from sweeps.promote.promotion import NotMappedError

RANKS = {"request.tie_rank": "request.arrival_us", "request.queue_rank": "queued_us"}
CODES = {code: f"slo{(name or 'none').capitalize()}" for code, name in enumerate(SLO_CLASSES)}
_RESULTS = {"scorer": "[]float64", "admission": "bool", "routing": "int32"}
_DECISIONS = {"scorer": "score", "admission": "holds", "routing": "place", "order": "key"}
_VERBS = {"scorer": "scores", "admission": "isAdmitted", "routing": "chosen", "order": "value"}


@dataclass(frozen=True)
class Input:
    """Hold a signal that the policy reads, with its dtype."""

    signal: Signal
    dtype: str
    is_of_endpoint: bool

    @property
    def field(self) -> str:
        """Return the signal's field name in Go."""
        return camel(self.signal.path.rpartition(".")[2])


@dataclass(frozen=True)
class PluginParameter:
    """Hold a number of the policy that affects its decisions."""

    key: str  # in the configuration
    field: str  # in Go
    number: Number
    value: float  # that the strategy gives it

    def drawn(self, generator: Any) -> float:
        """Draw another allowed value of the number."""
        number = self.number
        low, high = number.searched or self._around()
        if number.prior == "log-uniform" and low > 0:
            value = math.exp(generator.uniform(math.log(low), math.log(high)))
        else:
            value = generator.uniform(low, high)
        value = float(np.round(value, 6))
        value = float(round(value)) if number.is_whole else value
        return value if number.permits(value) else float(number.default)

    def _around(self) -> tuple[float, float]:
        number = self.number
        size = abs(number.default) or 1.0
        low = number.low if math.isfinite(number.low) else number.default - 2 * size
        return low, max(3 * size, low + size)


@dataclass(frozen=True)
class Draw:
    """Describe a random draw of the function: one number, or one number for each endpoint."""

    name: str
    is_of_endpoint: bool


@dataclass(frozen=True)
class Function:
    """Hold the compiled function, and the values that the plugin around it must supply."""

    rule: PromotedRule
    compiled: Compiled
    inputs: tuple[Input, ...]
    parameters: tuple[PluginParameter, ...]
    draws: tuple[Draw, ...]
    state: Mapping[str, str]  # field in Go -> type
    start: Mapping[str, str]  # field in Go -> expression of the parameters
    constants: Mapping[str, tuple[str, str]]  # name -> value, and where the policy has it
    helpers: tuple[str, ...]
    text: str
    rank: str  # of an order: the input by which equal values are ordered

    @property
    def verb(self) -> str:
        """Return the Go function's name."""
        return _VERBS[self.rule.kind]

    @property
    def of_endpoint(self) -> tuple[Input, ...]:
        """Return the signals that endpoints supply, including those aggregated to one number for the request."""
        return tuple(
            read for read in self.inputs if read.is_of_endpoint or read.signal.is_aggregated
        )

    @property
    def of_request(self) -> tuple[Input, ...]:
        """Return the signals that the request supplies."""
        return tuple(read for read in self.inputs if not read.is_of_endpoint)

    def reads(self, target: TargetVersion) -> tuple[str, ...]:
        """Return the names of the target's readings that the signals are computed from."""
        names = {name for read in self.inputs for name in read.signal.readings}
        return tuple(name for name in target.readings if name in names)


def function_of(compiled: Compiled, target: TargetVersion) -> Function:
    """Return the Go function of a compiled rule for a target.

    Raises:
        NotMappedError: the policy needs a signal or a primitive without a counterpart.
    """
    rule = compiled.rule
    rank = _rank_of(compiled) if rule.is_order else ""
    outputs = (*compiled.decisions[:1], *compiled.state.values())
    for node in inputs_of(outputs, "unsupported"):
        raise _unsupported(rule, node)
    inputs = tuple(_input(rule, target, node, outputs) for node in _distinct(outputs))
    parameters = _parameters(compiled, outputs)
    terms = Terms(
        {name: parameter.field for name, parameter in parameters.items()},
        {read.signal.path: CODES for read in inputs if read.signal.is_code},
        rule.is_order,
        lambda node: _unsupported(rule, node),
    )
    draws = _draws(outputs, terms)
    if compiled.decisions[0].op in ("select", "reduce", "arg"):
        compiled.graph.names.setdefault(compiled.decisions[0].order, _DECISIONS[rule.kind])
    writer = Writer(compiled.graph, outputs, terms)
    score = compiled.decisions[0] if rule.kind == "scorer" else None
    if rule.is_order:
        _check_order(rule, writer)
    lines = writer.write(score)
    text = _text(compiled, writer, lines, draws)
    start = {exported(name): writer.expression(node) for name, node in compiled.start.items()}
    helpers = tuple(sorted(terms.used & set(HELPERS)))
    return Function(
        rule,
        compiled,
        tuple(sorted(inputs, key=lambda read: read.signal.path)),
        tuple(parameters.values()),
        tuple(draws),
        {exported(name): node.dtype for name, node in compiled.start.items()},
        start,
        dict(sorted(terms.constants.items())),
        helpers,
        text,
        rank,
    )


def _distinct(outputs: tuple[Node, ...]) -> list[Node]:
    """Return the input nodes that the outputs depend on, one for each signal."""
    distinct: dict[str, Node] = {}
    for node in inputs_of(outputs, "input"):
        if node.dtype != "key":
            distinct.setdefault(str(node.attrs[0]), node)
    return list(distinct.values())


def _input(
    rule: PromotedRule, target: TargetVersion, node: Node, outputs: tuple[Node, ...]
) -> Input:
    path = str(node.attrs[0])
    signal = target.signal(path, rule.revision)
    if signal is None:
        proposal = target.manifest["missing"].get(path, NO_PROPOSAL)
        origins = [user.origin for user in live(outputs) if node in user.args and user.origin]
        where = (origins or [place_of_policy(rule.policies[0])])[0]
        raise NotMappedError(
            f"{rule.what}: CRITICAL: the signal {path} at {where} has no counterpart in {target.name}, and without it "
            f"the policy decides otherwise; {proposal}"
        )
    return Input(signal, node.dtype, node.rank == 1)


def _unsupported(rule: PromotedRule, node: Node) -> NotMappedError:
    name = str(node.attrs[0])
    what = name if " " in name else f"the primitive {name}"
    proposal = PROPOSALS.get(name, PROPOSALS["random_fold_in"] if "draw" in name else NO_PROPOSAL)
    return NotMappedError(
        f"{rule.what}: {what} at {node.origin or 'an unknown line'} has no counterpart in Go; {proposal}"
    )


def _parameters(compiled: Compiled, outputs: tuple[Node, ...]) -> dict[str, PluginParameter]:
    """Return the numbers that affect the outputs, by their name in the graph."""
    used = {str(node.attrs[0]) for node in inputs_of((*outputs, *compiled.start.values()), "param")}
    parameters: dict[str, PluginParameter] = {}
    policies = compiled.rule.policies
    keys: set[str] = set()
    for place, policy in enumerate(policies):
        values = policy.values()
        for field, number in numbers_of(policy.params).items():
            name = f"{place}.{field}" if compiled.rule.is_order else field
            if name not in used:
                continue
            unique = field if camel(field) not in keys else f"scheduler_{field}"
            keys.add(camel(unique))
            value = float(getattr(values, field))
            parameters[name] = PluginParameter(camel(unique), exported(unique), number, value)
    return parameters


def _draws(outputs: tuple[Node, ...], terms: Terms) -> list[Draw]:
    draws = []
    nodes = list(inputs_of(outputs, "draw"))
    for count, node in enumerate(nodes, 1):
        name = "drawn" if len(nodes) == 1 else f"drawn{count}"
        terms.draws[node.order] = name
        draws.append(Draw(name, node.rank == 1))
    return draws


def _rank_of(compiled: Compiled) -> str:
    node = compiled.decisions[1]
    path = str(node.attrs[0]) if node.op == "input" else ""
    if path not in RANKS:
        raise NotMappedError(
            f"{compiled.rule.what}: its rank at {node.origin or 'its result'} is computed, but a queue of the router "
            "knows arrival and entry only; return context.request.tie_rank or queue_rank"
        )
    return path


def _check_order(rule: PromotedRule, writer: Writer) -> None:
    for node in writer.plan.nodes:
        if node.op in (
            "iota",
            "length",
            "draw",
            "cumulated",
            "arg",
            "reduce",
            "at",
            "reversed",
            "broadcast",
        ):
            raise NotMappedError(
                f"{rule.what}: {node.op} at {node.origin or 'its result'} looks at more than one request, but an "
                "ordering policy compares two; write the value of a request from its own fields"
            )


def _text(compiled: Compiled, writer: Writer, lines: list[str], draws: list[Draw]) -> str:
    rule = compiled.rule
    decision = compiled.decisions[0]
    first = "scores" if rule.kind == "scorer" else writer.expression(decision)
    result = _RESULTS.get(rule.kind, decision.dtype)
    if rule.kind == "routing" and decision.dtype != "int32":
        first = f"int32({first})"
    returned, results = f"return {first}", result
    if compiled.state:
        fields = ", ".join(
            f"{exported(name)}: {writer.expression(node)}" for name, node in compiled.state.items()
        )
        returned, results = f"return {first}, state{{{fields}}}", f"({result}, state)"
    before = _drawn(draws)
    used = writer.terms.used
    if any(draw.is_of_endpoint for draw in draws):
        used.add("endpoints")
    arguments = [
        f"{'before' if 'state' in used else '_'} state" if compiled.state else "",
        "random func() float64" if draws else "",
        f"{'request' if 'request' in used else '_'} requestSignals"
        if rule.is_order or _of_request(writer)
        else "",
        _endpoints_argument(rule, "endpoints" in used),
    ]
    name = _VERBS[rule.kind]
    receiver = "p *parameters" if "parameters" in used else "*parameters"
    head = f"func ({receiver}) {name}({', '.join(filter(None, arguments))}) {results} {{"
    comment = _comment(rule, name, bool(writer.terms.rounded))
    return "\n".join([*comment, head, *(f"\t{line}" for line in [*before, *lines, returned]), "}"])


def _endpoints_argument(rule: PromotedRule, is_used: bool) -> str:
    if rule.is_order or (rule.kind == "admission" and not is_used):
        return ""
    return f"{'endpoints' if is_used else '_'} []endpointSignals"


def _of_request(writer: Writer) -> bool:
    return any(
        node.op == "input" and node.rank == 0 and node.dtype != "key" for node in writer.plan.nodes
    )


def _comment(rule: PromotedRule, name: str, is_rounded: bool) -> list[str]:
    words = {
        "scores": "rates every endpoint, 1 is best",
        "isAdmitted": "tells whether the request is let in",
        "chosen": "is the place of the endpoint that the request goes to",
        "value": "is least for the request that comes first",
    }
    lines = [f"// {name} {words[name]}; compiled from the policy {rule.name} of the simulator."]
    if is_rounded:
        lines.append(
            "// Products that enter sums are converted, so that no processor joins both into one rounding."
        )
    return lines


def _drawn(draws: list[Draw]) -> list[str]:
    lines = []
    for draw in draws:
        if draw.is_of_endpoint:
            lines += [
                f"{draw.name} := make([]float64, len(endpoints))",
                f"for i := range {draw.name} {{",
                f"\t{draw.name}[i] = random()",
                "}",
            ]
        else:
            lines.append(f"{draw.name} := random()")
    return lines
