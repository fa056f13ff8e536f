"""Find faults of an EndpointPickerConfig that no schema can express: names, references, weights, gates, parameters.

Every rule takes a configuration that keeps its schema, and yields (severity, name of the rule, sentence).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from blis_jax.errors import closest
from sweeps.promote.llmd.documents import Document, PluginType, TargetTypes, schema_findings
from sweeps.promote.llmd.roles import BY_PREFIX, DECODE, FILTERS, HANDLER, POOLS, PREFILL
from sweeps.promote.promotion import CRITICAL, IMPORTANT, SUGGESTION, Finding, Severity

FLOW_GATE = "flowControl"
PRODUCER_REFERENCES = ("prefixMatchInfoProducerName", "inFlightLoadProducerName")
Broken = tuple[Severity, str, str]


class PickerConfig:
    """Hold a picker configuration, with its plugins by name."""

    def __init__(self, content: Mapping[str, Any], target: TargetTypes) -> None:
        self.content, self.target = content, target
        self.plugins: list[Mapping[str, Any]] = content["plugins"]
        self.profiles: list[Mapping[str, Any]] = content["schedulingProfiles"]
        self.flow: Mapping[str, Any] = content.get("flowControl", {})
        self.bands: list[Mapping[str, Any]] = self.flow.get("priorityBands", [])
        self.by_name = {self.name(plugin): str(plugin["type"]) for plugin in self.plugins}
        gates = content.get("featureGates", ())
        self.gates = {gate.partition("=")[0] for gate in gates if not gate.endswith("=false")}

    @staticmethod
    def name(plugin: Mapping[str, Any]) -> str:
        """Return a plugin's name; the type if it has no name."""
        return str(plugin.get("name") or plugin["type"])

    @property
    def types(self) -> list[str]:
        """Return the types of all plugins."""
        return list(self.by_name.values())

    def type_of(self, name: str) -> PluginType | None:
        """Return the registered type of the plugin with this name; None if unknown."""
        return self.target.plugins.get(self.by_name.get(name, ""))

    def used_in(self, profile: Mapping[str, Any]) -> list[str]:
        """Return the types of a profile's plugins in order; "" for a reference to no plugin."""
        return [self.by_name.get(step["pluginRef"], "") for step in profile["plugins"]]

    def parameter(self, kind: str, *keys: str) -> Any:
        """Return the parameter below `keys` of the first plugin of a type; None if there is none."""
        plugins = (plugin for plugin in self.plugins if plugin["type"] == kind)
        value: Any = next(plugins, {}).get("parameters", {})
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value

    @property
    def use_of_roles(self) -> str:
        """Return how profiles use the roles of pods: POOLS, DECODE, or empty if no profile filters by role."""
        if HANDLER in self.types:
            return POOLS
        used = (kind for profile in self.profiles for kind in self.used_in(profile))
        return DECODE if set(used) & set(FILTERS.values()) else ""

    def steps(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield each plugin reference of all profiles, in order, with its place as text."""
        for index, profile in enumerate(self.profiles):
            for at, step in enumerate(profile["plugins"]):
                yield f"schedulingProfiles[{index}].plugins[{at}]", step


def picker_findings(document: Document, target: TargetTypes) -> Iterator[Finding]:
    """Yield all findings inside one configuration."""
    config = PickerConfig(document.content, target)
    for rule in _RULES:
        for severity, name, message in rule(config):
            yield Finding(severity, name, document.path, message)
    for place, plugin in enumerate(config.plugins):
        kind = target.plugins.get(plugin["type"])
        if kind is not None:
            numbers, where = plugin.get("parameters", {}), f"plugins[{place}].parameters."
            yield from schema_findings(numbers, kind.closed_schema(), document.path, where)


def repeated(names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield each name that occurs more than once, with its count."""
    return ((name, count) for name, count in sorted(Counter(names).items()) if count > 1)


def _versions(config: PickerConfig) -> Iterator[Broken]:
    version, target = config.content["apiVersion"], config.target
    wanted = target.config_api_version
    if version in target.config_deprecated:
        yield IMPORTANT, "deprecated", f"apiVersion {version} is deprecated; write {wanted}"
    elif version != wanted:
        message = (
            f"apiVersion is {version!r}, allowed is {wanted}; the picker does not start otherwise"
        )
        yield CRITICAL, "wrong-group", message
    if target.is_detector_at_top:
        if "saturationDetector" in config.flow:
            message = (
                "flowControl has saturationDetector, which this version has at the top; move it"
            )
            yield CRITICAL, "unknown-field", message
        return
    places = {
        "saturationDetector": "flowControl.saturationDetector",
        "parser": "requestHandler.parsers",
    }
    for key, instead in places.items():
        if key in config.content:
            yield IMPORTANT, "deprecated", f"{key} at the top is deprecated; write {instead}"


def _names(config: PickerConfig) -> Iterator[Broken]:
    plugins = map(config.name, config.plugins)
    profiles = (str(profile["name"]) for profile in config.profiles)
    for what, names in (("plugin", plugins), ("profile", profiles)):
        for name, count in repeated(names):
            message = f"{what} {name!r} is there {count} times; give each a name of its own"
            yield CRITICAL, "duplicate-name", message


def _types(config: PickerConfig) -> Iterator[Broken]:
    known = config.target.plugins
    for place, name in enumerate(plugin["type"] for plugin in config.plugins):
        if name not in known:
            message = (
                f"plugins[{place}]: type {name!r} is not registered{closest(name, list(known))}"
            )
            yield CRITICAL, "unknown-plugin-type", message
        elif known[name].deprecated:
            message = f"plugins[{place}]: {name} is deprecated; {known[name].deprecated}"
            yield IMPORTANT, "deprecated", message


def _references(config: PickerConfig) -> Iterator[Broken]:
    for place, reference, kinds in _all_references(config):
        name, known = str(reference), list(config.by_name)
        kind = config.type_of(name)
        if name not in known:
            message = (
                f"{place} names {name!r}, which is no plugin of the file; there are "
                f"{', '.join(known)}{closest(name, known)}"
            )
            yield CRITICAL, "wrong-reference", message
        elif kind is not None and kind.kind not in kinds:
            message = f"{place} names {name!r}, a plugin of kind {kind.kind}; it takes {' or '.join(kinds)}"
            is_admitter = kind.kind == "admitter" and place.startswith("schedulingProfiles")
            yield CRITICAL, "admitter-in-profile" if is_admitter else "wrong-reference", message


def _all_references(config: PickerConfig) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield every reference to a plugin: its place, the name, and the kinds of plugin that the place accepts."""
    for place, step in config.steps():
        kinds = ("scorer", "filter", "picker", "detector")
        yield f"{place}.pluginRef", step["pluginRef"], kinds
    for index, band in enumerate(config.bands):
        for key, kind in (("fairnessPolicyRef", "fairness"), ("orderingPolicyRef", "ordering")):
            if key in band:
                yield f"flowControl.priorityBands[{index}].{key}", band[key], (kind,)
    for where, holder in (("flowControl.", config.flow), ("", config.content)):
        if "saturationDetector" in holder:
            name = holder["saturationDetector"]["pluginRef"]
            yield f"{where}saturationDetector.pluginRef", name, ("detector",)
    key = "usageLimitPolicyPluginRef"
    if key in config.flow:
        yield f"flowControl.{key}", config.flow[key], ("usage-limit",)
    for index, plugin in enumerate(config.plugins):
        for key in PRODUCER_REFERENCES:
            if key in plugin.get("parameters", {}):
                name = plugin["parameters"][key]
                yield f"plugins[{index}].parameters.{key}", name, ("producer",)
    decider = config.parameter(HANDLER, "deciders", PREFILL)
    if decider is not None:
        yield f"{HANDLER}.parameters.deciders.{PREFILL}", decider, ("decider",)


def _weights(config: PickerConfig) -> Iterator[Broken]:
    for place, step in config.steps():
        name = step["pluginRef"]
        kind = config.type_of(name)
        if kind is None:
            continue
        if kind.kind != "scorer" and "weight" in step:
            message = f"{place}: {name} is a {kind.kind} and has a weight; only scorers have one"
            yield CRITICAL, "weight-on-non-scorer", message
        if kind.kind == "scorer" and "weight" not in step:
            message = f"{place}: {name} has no weight, so it counts 1.0; write the weight"
            yield IMPORTANT, "weight-not-written", message


def _pickers(config: PickerConfig) -> Iterator[Broken]:
    pickers = [
        kind for kind in map(config.type_of, config.by_name) if kind and kind.kind == "picker"
    ]
    for index, profile in enumerate(config.profiles):
        place, names = (
            f"schedulingProfiles[{index}]",
            [step["pluginRef"] for step in profile["plugins"]],
        )
        kinds = [kind.kind for kind in map(config.type_of, names) if kind is not None]
        count = kinds.count("picker")
        if kinds and not count and len(pickers) > 1:
            message = f"{place} names no picker, and the target takes any of {len(pickers)}; name the one that is meant"
            yield CRITICAL, "picker-not-written", message
        elif kinds and not count:
            message = f"{place} names no picker; write max-score-picker, the default"
            yield SUGGESTION, "picker-not-written", message
        elif count > 1:
            message = f"{place} names {count} pickers, and the target does not start with more than one; keep one"
            yield CRITICAL, "several-pickers", message
        if "weighted-random-picker" in config.used_in(profile):
            message = (
                f"{place}: under weighted-random-picker a weight changes the odds; keep the simulated weights as "
                "they are"
            )
            yield SUGGESTION, "weights-under-random-picker", message


def _gates(config: PickerConfig) -> Iterator[Broken]:
    known = config.target.feature_gates
    for gate in sorted(config.gates - set(known)):
        message = f"featureGates: {gate!r} is unknown; use {', '.join(known)}{closest(gate, known)}"
        yield CRITICAL, "unknown-gate", message
    idle = sorted(set(config.flow) - {"saturationDetector"})  # which counts without the gate too
    if idle and FLOW_GATE not in config.gates:
        message = f"flowControl has {', '.join(idle)}, but the gate flowControl is off: they have no effect; add it"
        yield CRITICAL, "flow-control-without-gate", message


def _handlers(config: PickerConfig) -> Iterator[Broken]:
    kinds = {name: kind.kind for name in config.by_name if (kind := config.type_of(name))}
    handlers = [name for name, kind in kinds.items() if kind == "handler"]
    if len(config.profiles) > 1 and not handlers:
        count = len(config.profiles)
        message = f"there are {count} profiles and no profile handler; add {HANDLER}, or keep one"
        yield CRITICAL, "handler-missing", message
    if len(handlers) > 1:
        message = f"{' and '.join(handlers)} are profile handlers; the target starts with one alone, so keep one"
        yield CRITICAL, "several-handlers", message


# --- the roles of pods --------------------------------------------------------------------------------


def _role_filters(config: PickerConfig) -> Iterator[Broken]:
    """Yield profiles without the filter of the role whose pods they choose; without a handler the role is decode."""
    run = {config.parameter(HANDLER, "profiles", role) or role: role for role in FILTERS}
    has_filters = set(config.types) & {*FILTERS.values(), "encode-filter"}
    if not has_filters and HANDLER not in config.types:
        return
    for index, profile in enumerate(config.profiles):
        place, used = f"schedulingProfiles[{index}]", config.used_in(profile)
        role = run.get(profile["name"], "") if HANDLER in config.types else DECODE
        if not role:
            message = f"{place}: {HANDLER} does not run the profile {profile['name']}; it runs {' and '.join(run)}"
            yield CRITICAL, "profile-not-run", message
            continue
        others = [kind for kind in (*FILTERS.values(), "encode-filter") if kind != FILTERS[role]]
        for wrong in [kind for kind in others if kind in used]:
            message = (
                f"{place} chooses {role} pods and has {wrong}; write {FILTERS[role]} in its place"
            )
            yield CRITICAL, "wrong-role-filter", message
        if used[:1] != [FILTERS[role]]:
            message = (
                f"{place}: the pool has roles, and the profile does not begin with {FILTERS[role]}; add it as the "
                "first plugin"
            )
            yield CRITICAL, f"missing-{FILTERS[role]}", message


def _moves(config: PickerConfig) -> Iterator[Broken]:
    """Yield settings that keep prompts from moving to a prefill pod, and profiles that differ beyond their role."""
    if HANDLER not in config.types:
        return
    there = {str(profile["name"]): profile for profile in config.profiles}
    names = {role: config.parameter(HANDLER, "profiles", role) or role for role in FILTERS}
    for role, name in names.items():
        if name not in there:
            message = (
                f"{HANDLER} runs the profile {name!r} for {role} pods, and there is none; add it"
            )
            yield CRITICAL, "profile-missing", message
    decider = config.parameter(HANDLER, "deciders", PREFILL)
    if not decider and config.parameter(HANDLER, "stageOrder") is None:
        message = f"{HANDLER} has no deciders.{PREFILL}, so no prompt moves to a prefill pod; name a decider"
        yield CRITICAL, "decider-missing", message
    if config.by_name.get(decider) == BY_PREFIX and not config.parameter(
        BY_PREFIX, "nonCachedTokens"
    ):
        message = f"{BY_PREFIX} has nonCachedTokens 0, with which no prompt moves; write 1 or more"
        yield CRITICAL, "decider-without-effect", message
    steps = [
        [step for step in there[name]["plugins"] if config.by_name.get(step["pluginRef"]) != kind]
        for name, kind in ((names[role], FILTERS[role]) for role in FILTERS)
        if name in there
    ]
    if any(profile_steps != steps[0] for profile_steps in steps):
        message = (
            f"the profiles {' and '.join(names.values())} differ by more than their role; the simulated pools have the "
            "same scorers, weights and picker"
        )
        yield IMPORTANT, "profiles-differ", message


def _blocks(config: PickerConfig) -> Iterator[Broken]:
    least = config.target.least_prefix_block
    for place, plugin in enumerate(config.plugins):
        size = plugin.get("parameters", {}).get("blockSizeTokens")
        if isinstance(size, int) and 0 < size < least:
            message = (
                f"plugins[{place}]: blockSizeTokens {size} is raised to {least}; write {least}"
            )
            yield IMPORTANT, "block-size-below-least", message


def _band_rules(config: PickerConfig) -> Iterator[Broken]:
    for priority, count in repeated(str(band.get("priority", 0)) for band in config.bands):
        yield CRITICAL, "duplicate-name", f"priority {priority} has {count} bands; keep one"
    orders = [config.by_name.get(band.get("orderingPolicyRef", "")) for band in config.bands]
    if orders.count("slo-deadline-ordering-policy") > 1:
        message = (
            "slo-deadline-ordering-policy orders inside a band only, and there are several bands, which are "
            "strict; put all classes in one band, or say that the classes are strict"
        )
        yield IMPORTANT, "order-across-bands", message
    for index, band in enumerate(config.bands):
        if band.get("maxRequests") == "0":
            message = (
                f'flowControl.priorityBands[{index}]: maxRequests "0" means the default, not none'
            )
            yield IMPORTANT, "zero-means-default", message


_RULES: tuple[Callable[[PickerConfig], Iterator[Broken]], ...] = (
    _versions, _names, _types, _references, _weights, _pickers, _gates, _handlers, _role_filters, _moves, _blocks,
    _band_rules,
)  # fmt: skip
