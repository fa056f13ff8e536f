"""Compile the plugins of a promotion: those of its policies for which the target has no counterpart."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from blis_jax.cluster import named_policies as named
from blis_jax.errors import ConfigError
from blis_jax.files.python_files import is_file
from blis_jax.policies import registry
from blis_jax.policies.contract import Policy
from blis_jax.policies.reading import reading
from sweeps.promote import DEFAULT_TARGET
from sweeps.promote.golang.arg_max import TRIED_SIZE, ScoredRouter, scored
from sweeps.promote.golang.functions import function_of
from sweeps.promote.golang.sources import Names, Plugin, readme, source, test_text, with_imports
from sweeps.promote.golang.structure import ELEMENTWISE, PROPOSALS, STRUCTURAL
from sweeps.promote.golang.target import FOLDER, TargetVersion, load
from sweeps.promote.golang.tracing import PromotedRule, compiled, gateway_context
from sweeps.promote.golang.vectors import vectors_json
from sweeps.promote.llmd.deployment import order_of
from sweeps.promote.maps import objective_name
from sweeps.promote.promotion import (
    ENGINE_PRIORITY,
    Files,
    GeneratedPlugin,
    NotMappedError,
    Promotion,
)
from sweeps.strategies.moved import PATHS
from sweeps.tracks.problem import rendered

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

PATCH, DENIAL = "registration.patch", "denial.patch"


def lines_of(plugins: Sequence[Names], target: TargetVersion) -> tuple[list[str], list[str]]:
    """Return the import lines and the registration calls, as they stand in the target's runner."""
    form = target.manifest["registration"]
    imports = [f'\t"{target.module}/{names.path}"' for names in plugins]
    calls = [
        "\t" + form.format(package=names.package, type=names.constant, factory=names.factory)
        for names in plugins
    ]
    return sorted(imports), calls


def registration(plugins: Sequence[Names], target: TargetVersion) -> dict[str, str]:
    """Return the patch that registers the plugins, for `git apply` in the target's repository."""
    runner = target.manifest["runner"]
    imports, calls = lines_of(plugins, target)
    path = runner["path"]
    text = [f"--- a/{path}", f"+++ b/{path}"]
    added = ["", *imports]  # a group of their own: gofmt sorts inside groups only
    text += _hunk(runner["import_after"], added, 0)
    text += _hunk(runner["register_after"], calls, len(added))
    return {PATCH: "\n".join(text) + "\n"}


def _hunk(place: Mapping[str, object], added: Sequence[str], shift: int) -> list[str]:
    line = int(str(place["line"]))
    head = f"@@ -{line},2 +{line + shift},{2 + len(added)} @@"
    return [
        head,
        f" {place['before']}",
        *(f"+{text}" for text in added),
        f" {place['after']}".rstrip(" ") or " ",
    ]


NO_LEADS: Mapping[str, int] = MappingProxyType({})
# words of Go, and packages that a runner imports by the same name
_TAKEN = {
    "any", "bool", "break", "bytes", "case", "chan", "cmd", "const", "context", "continue", "default", "defer", "else",
    "error", "errors", "fallthrough", "flag", "fmt", "for", "func", "go", "goto", "http", "if", "import", "init",
    "interface", "internal", "io", "json", "log", "main", "map", "math", "max", "min", "net", "nil", "os", "package",
    "plugin", "rand", "range", "regexp", "return", "runtime", "select", "sort", "strings", "struct", "switch", "sync",
    "testing", "time", "type", "types", "var", "vendor",
}  # fmt: skip


@dataclass(frozen=True)
class Plugins:
    """Hold the files of plugins by path, and a description of each plugin."""

    files: Files
    generated: tuple[GeneratedPlugin, ...]


def plugins_of(promotion: Promotion) -> Plugins:
    """Return the plugins that the promoted strategy needs in addition to the target's own.

    Raises:
        NotMappedError: a policy needs a signal or a primitive without a counterpart; the sentence names its line.
        ConfigError: the target is unknown, or two policies have the same name.
    """
    target = load(promotion.target)
    needed = [rule for rule in rules_of(promotion) if not target.built_in(rule.kind, rule.name)]
    try:
        order = order_of(promotion, promotion.arm.config)
    except NotMappedError:
        for rule in needed:  # the router's queue is ordered by a plugin
            if rule.kind == "order":
                _refuse_moving_order(plugin_of(rule, target))
        return plugins_for(needed, target)
    leads = order.leads_ms if order is not None and order.is_by_class else {}
    return plugins_for([rule for rule in needed if rule.kind != "order"], target, leads)


def plugins_for(
    rules: list[PromotedRule], target: TargetVersion, leads_ms: Mapping[str, int] = NO_LEADS
) -> Plugins:
    """Compile rules to plugins; rules that the target has built in are compiled too (as a control).

    Args:
        rules: the rules to compile.
        target: the version of the endpoint picker to compile for.
        leads_ms: by class, the lead in the engine's queue; if any, a plugin that writes requests' priority is added.
    """
    files: dict[str, str] = {}
    made = [plugin_of(rule, target) for rule in rules]
    paths = [plugin.names.path for plugin in made]
    for path in paths:
        if paths.count(path) > 1:
            raise ConfigError(
                f"two policies would be the package {path}; give one function another name"
            )
    for plugin in made:
        files |= files_of(plugin)
    generated, names = list(map(_generated, made)), [plugin.names for plugin in made]
    if leads_ms:
        priority_names = Names(
            ENGINE_PRIORITY, "enginepriority", "EnginePriority", "", "engine_priority.go"
        )
        priority_names = replace(
            priority_names,
            path=f"{target.manifest['pre_request']['area']}/{priority_names.package}",
        )
        texts = engine_priority_texts(target)
        for ending, text in zip((".go", "_test.go"), texts, strict=True):
            files[f"{FOLDER}/{priority_names.path}/engine_priority{ending}"] = text
        numbers = {objective_name(name): float(lead) for name, lead in leads_ms.items()}
        level = str(target.manifest["stability"])
        signals = ("request.slo_class", "request.arrival_us")
        priority_plugin = GeneratedPlugin(
            "request", "static order", ENGINE_PRIORITY, priority_names.path, numbers, signals, level
        )
        generated.append(priority_plugin)
        names.append(priority_names)
    if names:
        files |= {f"{FOLDER}/{path}": text for path, text in registration(names, target).items()}
    denial = target.manifest.get("denial")
    if denial and any(plugin.kind == "admission" for plugin in made):
        head = [f"--- a/{denial['path']}", f"+++ b/{denial['path']}"]
        files[f"{FOLDER}/{DENIAL}"] = "\n".join([*head, *_hunk(denial, denial["added"], 0)]) + "\n"
    return Plugins(MappingProxyType(dict(sorted(files.items()))), tuple(generated))


def _refuse_moving_order(plugin: Plugin) -> None:
    """Refuse an order that reads the clock: the queue is a heap, whose order must not change while requests wait."""
    if plugin.kind == "order" and plugin.of("clock"):
        raise NotMappedError(
            f"order {plugin.function.rule.name}: it reads now_us, and the router's queue is a heap whose order must "
            "not change while requests wait; use an order of arrival, class and length, or a priority with a static "
            "key such as slo-tiered"
        )


def rules_of(promotion: Promotion) -> Iterator[PromotedRule]:
    """Yield the rules by which a strategy decides at the router, including those that the target has built in."""
    config = promotion.arm.config
    chosen = named.numbered(config)
    has_cpu_tier = config.kv_cpu_blocks > 0

    def rule(kind: str, name: str, *policies: Policy) -> PromotedRule:
        return PromotedRule(kind, short_name(name), policies, has_cpu_tier, config.revision)

    yield rule("admission", named.admission_name(config), chosen.admission)
    if config.routing_policy == "weighted":
        for (name, _), (policy, _) in zip(config.scorers(), chosen.scorers, strict=True):
            yield rule("scorer", name, policy)
        _check_picker(config.routing_picker, promotion.target)
    else:
        as_scores = scored_router(config)
        if as_scores is None:
            yield rule("routing", config.routing_policy, chosen.routing)
        else:
            yield rule("scorer", config.routing_policy, as_scores.scorer)
    yield order_rule(config.priority_policy, config.scheduler, chosen.priority, chosen.scheduler)


def scored_router(config: ClusterConfig) -> ScoredRouter | None:
    """Return the scores of a router from a user's file if the router is an arg max; None for any other router."""
    if not is_file(config.routing_policy):
        return None
    chosen = named.numbered(config)
    policy = reading(chosen.routing, num_scorers=max(len(chosen.scorers), 1))
    context = gateway_context(policy, TRIED_SIZE, config.kv_cpu_blocks > 0)
    return scored(policy, chosen.scorers, context)


def order_rule(priority: str, scheduler: str, urgency: Policy, order: Policy) -> PromotedRule:
    """Return the order of a priority and a scheduler; a scheduler that ignores priorities is named alone."""
    reads_priority = scheduler not in ("fcfs", "sjf")
    name = f"{short_name(priority)}+{short_name(scheduler)}" if reads_priority else scheduler
    return PromotedRule("order", name, (urgency, order))


def _check_picker(name: str, target: str) -> None:
    if not load(target).built_in("picker", name):
        raise NotMappedError(
            f"picker {short_name(name)}: a picker of one's own has no generated plugin for {target}; use first-best, "
            "random-best or weighted-random, or make it a routing policy, which becomes a scorer"
        )


def short_name(name: str) -> str:
    """Return a policy's name in kebab case; for a policy in a file, its function's name."""
    last = name.rpartition(":")[2] if is_file(name) else name
    return re.sub(r"[^a-z0-9]+", "-", last.lower()).strip("-")


def engine_priority_texts(target: TargetVersion) -> tuple[str, str]:
    """Return source and test of the plugin that writes the engine's priority into a request's body."""
    manifest = target.manifest
    values = {
        "manifest": manifest,
        "pre_request": manifest["pre_request"],
        "ignored": "_ = " if manifest["pre_request"]["result"] else "",
        "decode": manifest["factory"]["decode"]
        .replace("{type}", "EnginePriorityType")
        .rstrip("\n")
        .split("\n"),
        "made": lambda text: manifest["factory"]["given"].replace("{json}", text),
    }
    source_text, test = (
        rendered("sweeps.promote.golang", f"engine_priority{ending}.go.j2", {}, values)
        for ending in ("", "_test")
    )
    return with_imports(target, source_text), with_imports(target, test)


# --- one plugin -----------------------------------------------------------------------------------


def plugin_of(rule: PromotedRule, target: TargetVersion) -> Plugin:
    """Compile a rule to a plugin."""
    function = function_of(compiled(rule), target)
    return Plugin(function, target, names_of(rule, target), _sentence(rule))


def names_of(rule: PromotedRule, target: TargetVersion) -> Names:
    """Return the names of a rule's plugin in Go."""
    kind = target.manifest["kinds"][rule.kind]
    words = [word for word in re.split(r"[^a-z0-9]+", rule.name) if word]
    ending = kind["ending"]
    made = [*words, *(["routing"] if rule.kind == "routing" else [])]
    if target.is_taken("-".join([*words, ending]), f"{kind['area']}/{''.join(made)}"):
        words, made = [*words, "simulated"], [*made, "simulated"]
    plugin_type = "-".join([*words, ending])
    parts = plugin_type.split("-")
    package = "".join(made)
    if package[0].isdigit() or package in _TAKEN:
        package = f"policy{package}"
    struct = "".join(part.capitalize() for part in parts)
    struct = f"Policy{struct}" if struct[0].isdigit() else struct
    return Names(plugin_type, package, struct, f"{kind['area']}/{package}", "_".join(words) + ".go")


def _sentence(rule: PromotedRule) -> str:
    docs = [
        (policy.decide.__doc__ or policy.name).strip().splitlines()[0] for policy in rule.policies
    ]
    return " ".join(docs)


def files_of(plugin: Plugin) -> dict[str, str]:
    """Return the files of the plugin's package by path: source, test, vectors, README."""
    folder = f"{FOLDER}/{plugin.names.path}"
    stem = plugin.names.file.removesuffix(".go")
    return {
        f"{folder}/{plugin.names.file}": source(plugin),
        f"{folder}/{stem}_test.go": test_text(plugin),
        f"{folder}/testdata/vectors.json": vectors_json(plugin),
        f"{folder}/README.md": readme(plugin),
    }


def _generated(plugin: Plugin) -> GeneratedPlugin:
    function = plugin.function
    return GeneratedPlugin(
        kind=plugin.kind,
        simulated_name=function.rule.name,
        type_name=plugin.names.plugin_type,
        package_path=plugin.names.path,
        parameters=MappingProxyType(
            {parameter.key: parameter.value for parameter in function.parameters}
        ),
        signals=tuple(read.signal.path for read in function.inputs),
        stability=str(plugin.target.manifest["stability"]),
    )


# --- the tables of docs/reference/promoted-go.md, made by the compiler itself -------------------------------

EXAMPLE = ("scorer", "kv-pressure")


def page() -> str:
    """Return the generated part of docs/reference/promoted-go.md."""
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


def policies_of_kind(kind: str) -> tuple[str, ...]:
    """Return the names of all policies of a kind: the package's first, then those of the tracks' experiments."""
    return (*registry.NAMES[kind], *PATHS.get(kind, {}).values())


def shipped_rules() -> Iterator[PromotedRule]:
    """Yield a rule for each policy of the package and the tracks that can be a plugin; orders once per policy."""
    for kind in ("scorer", "admission", "routing"):
        for name in policies_of_kind(kind):
            if (kind, name) != ("routing", "weighted"):  # its scorers are plugins, it is none
                yield PromotedRule(kind, short_name(name), (registry.find(kind, name),))
    pairs = [(name, "priority-fcfs") for name in policies_of_kind("priority")]
    pairs += [
        ("constant", name) for name in policies_of_kind("scheduler") if name != "priority-fcfs"
    ]
    for priority, scheduler in pairs:
        urgency, order = registry.find("priority", priority), registry.find("scheduler", scheduler)
        yield order_rule(priority, scheduler, urgency, order)


def _policies() -> str:
    target = load(DEFAULT_TARGET)
    lines = ["| kind | policy | plugin | it reads, or why there is none |", "|---|---|---|---|"]
    for rule in shipped_rules():
        built_in = target.built_in(rule.kind, rule.name)
        try:
            plugin = plugin_of(rule, target)
        except NotMappedError as error:
            why = re.sub(r"(\.py):\d+", r"\1", str(error).partition(": ")[2])  # lines move
            lines.append(f"| {rule.kind} | `{rule.name}` | none | {why} |")
            continue
        signals = ", ".join(f"`{read.signal.path}`" for read in plugin.function.inputs) or "nothing"
        beside = (
            f" (the target's own `{built_in}` is used, this one as a control)" if built_in else ""
        )
        lines.append(
            f"| {rule.kind} | `{rule.name}` | `{plugin.names.plugin_type}`{beside} | {signals} |"
        )
    return "\n".join(lines)


def _primitives() -> str:
    lines = ["| primitive | in Go |", "|---|---|"]
    for name, entry in ELEMENTWISE.items():
        real = f"`{entry.go}`".replace("|", "\\|")
        whole = f"; whole numbers `{entry.go_whole}`".replace("|", "\\|") if entry.go_whole else ""
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
    go = function_of(compiled(rule), load(DEFAULT_TARGET)).text
    return f"The policy `{name}`:\n\n```python\n{python}\n```\n\nWhat is compiled from it:\n\n```go\n{go}\n```"
