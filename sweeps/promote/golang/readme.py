"""The README of a generated package."""

from __future__ import annotations

from sweeps.promote.golang.parts import Plugin
from sweeps.promote.golang.sources import described


def readme(plugin: Plugin) -> str:
    """What the plugin does, its parameters and signals, and what differs from the simulator."""
    rule = plugin.function.rule
    parts = [
        f"# {plugin.names.plugin_type}",
        plugin.what,
        f"Compiled from the {rule.kind} policy `{rule.name}` of the simulator blis_jax, "
        "operation by operation the function that was simulated." + _stability(plugin),
        _configuration(plugin),
        _signals(plugin),
        _differences(plugin),
        "## Test",
        "`go test` compares the plugin with the simulated policy on the vectors of `testdata/vectors.json`, "
        "to 1e-12: "
        "random, tied and degenerate readings, several sets of parameters, and readings just before and after the "
        "decision changes.",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _stability(plugin: Plugin) -> str:
    is_alpha = plugin.target.manifest["stability"] == "Alpha"
    return (
        " Its stability is Alpha: the endpoint picker needs `--allow-experimental-plugins=true`."
        if is_alpha
        else ""
    )


def _configuration(plugin: Plugin) -> str:
    given = plugin.function.parameters
    lines = ["## Configuration", "", "```yaml", f"- type: {plugin.names.plugin_type}"]
    if given:
        lines += ["  parameters:", *(f"    {one.key}: {one.value!r}" for one in given)]
    lines.append("```")
    if given:
        lines += ["", "| parameter | meaning | default |", "|---|---|---|"]
        lines += [f"| `{one.key}` | {described(one)} | {one.number.default:g} |" for one in given]
    return "\n".join(lines)


def _signals(plugin: Plugin) -> str:
    if not plugin.function.inputs:
        return "It reads no signals."
    lines = [
        "## Signals",
        "",
        "| in the simulator | here | freshness here | in the simulator |",
        "|---|---|---|---|",
    ]
    for one in plugin.function.inputs:
        told = one.signal.declared
        lines.append(
            f"| `{one.signal.path}` | {told['metric']} | {told['refresh']} | {told['simulator']} |"
        )
    return "\n".join(lines)


def _differences(plugin: Plugin) -> str:
    found = []
    if plugin.has_state:
        found.append(
            "The state is kept in each replica of the endpoint picker; replicas do not share it, and a restart "
            "forgets it."
        )
    if plugin.function.draws:
        found.append(
            "Random draws come from `math/rand/v2`: the law is the simulator's, the numbers are others."
        )
    if plugin.kind == "routing":
        found.append(
            "The chosen endpoint scores 1 and the others 0, so it is the only scorer of its profile, with "
            "`max-score-picker`. "
            "Between equals the first of the list is taken, and the list has no fixed order."
        )
    if plugin.kind == "order":
        found.append(
            "In the simulator the order holds in the wait queue of every instance; here it holds in the router's "
            "queues, inside one priority band."
        )
    if plugin.kind == "order" and any(
        one.signal.path == "now_us" for one in plugin.function.inputs
    ):
        found.append(
            "The value of a request changes with time, but a queue is sorted when requests enter: "
            "where two requests would change places later, they stay."
        )
    if plugin.reads_metrics:
        found.append(
            "An endpoint without metrics is left out and scores 0."
            if plugin.kind in ("scorer", "routing")
            else "An endpoint without metrics is left out."
        )
    if plugin.kind == "admission" and plugin.reads_endpoints:
        found.append("Without endpoints the request is let in, and the scheduler answers.")
    return (
        "\n".join(["## What differs from the simulator", "", *(f"- {one}" for one in found)])
        if found
        else ""
    )
