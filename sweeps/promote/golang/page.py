"""The tables of docs/reference/promoted-go.md: primitives, policies, and an example, made by the compiler itself."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from blis_jax.policies import registry
from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.golang import target as targets
from sweeps.promote.golang.compiler.functions import function_of
from sweeps.promote.golang.compiler.primitives import ELEMENTWISE, PROPOSALS, STRUCTURAL
from sweeps.promote.golang.compiler.tracing import PromotedRule, compiled
from sweeps.promote.golang.plugins import order_rule, plugin_of, short_name
from sweeps.promote.promotion import NotMappedError
from sweeps.strategies.moved import PATHS

EXAMPLE = ("scorer", "kv-pressure")


def page() -> str:
    """Return all generated parts of the page."""
    return "\n\n".join(
        [
            "## An example",
            _example(),
            "## Primitives",
            _primitives(),
            "What has no counterpart ends in a sentence that says what to write instead:",
            _proposals(),
            f"## Policies of the package, for `{DEFAULT_TARGET}`",
            _policies(),
        ]
    )


def names_of(kind: str) -> tuple[str, ...]:
    """Return the policies of a kind, those of the package first, then those of the tracks' experiments."""
    return (*registry.NAMES[kind], *PATHS.get(kind, {}).values())


def shipped_rules() -> Iterator[PromotedRule]:
    """Yield everything of the package and the tracks that could be a plugin; every priority and scheduler once."""
    for kind in ("scorer", "admission", "routing"):
        for name in names_of(kind):
            if (kind, name) != ("routing", "weighted"):  # its scorers are plugins, it is none
                yield PromotedRule(kind, short_name(name), (registry.find(kind, name),))
    pairs = [(name, "priority-fcfs") for name in names_of("priority")]
    pairs += [("constant", name) for name in names_of("scheduler") if name != "priority-fcfs"]
    for priority, scheduler in pairs:
        urgency, order = registry.find("priority", priority), registry.find("scheduler", scheduler)
        yield order_rule(priority, scheduler, urgency, order)


def _policies() -> str:
    target = targets.load(DEFAULT_TARGET)
    lines = ["| kind | policy | plugin | it reads, or why there is none |", "|---|---|---|---|"]
    for rule in shipped_rules():
        own = target.built_in(rule.kind, rule.name)
        try:
            plugin = plugin_of(rule, target)
        except NotMappedError as error:
            why = re.sub(r"(\.py):\d+", r"\1", str(error).partition(": ")[2])  # lines move
            lines.append(f"| {rule.kind} | `{rule.name}` | none | {why} |")
            continue
        signals = ", ".join(f"`{one.signal.path}`" for one in plugin.function.inputs) or "nothing"
        beside = f" (the target's own `{own}` is used, this one as a control)" if own else ""
        lines.append(
            f"| {rule.kind} | `{rule.name}` | `{plugin.names.plugin_type}`{beside} | {signals} |"
        )
    return "\n".join(lines)


def _primitives() -> str:
    lines = ["| primitive | in Go |", "|---|---|"]
    for name, one in ELEMENTWISE.items():
        real = f"`{one.go}`".replace("|", "\\|")
        whole = f"; whole numbers `{one.go_whole}`".replace("|", "\\|") if one.go_whole else ""
        lines.append(f"| `{name}` | {real}{whole} |")
    lines += [f"| `{name}` | {what} |".replace("||", "\\|\\|") for name, what in STRUCTURAL.items()]
    return "\n".join(lines)


def _proposals() -> str:
    return "\n".join(
        [
            "| primitive | instead |",
            "|---|---|",
            *(f"| `{name}` | {what} |" for name, what in PROPOSALS.items()),
        ]
    )


def _example() -> str:
    kind, name = EXAMPLE
    policy = registry.find(kind, name)
    python = inspect.getsource(policy.decide).rstrip()
    rule = PromotedRule(kind, name, (policy,))
    go = function_of(compiled(rule), targets.load(DEFAULT_TARGET)).text
    return f"The policy `{name}`:\n\n```python\n{python}\n```\n\nWhat is compiled from it:\n\n```go\n{go}\n```"
