"""Rules inside one EndpointPickerConfig: names, references, weights, gates, parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from blis_jax.errors import closest
from sweeps.promote.checks.closed_schemas import schema_findings
from sweeps.promote.checks.documents import Document
from sweeps.promote.checks.target_types import PluginType, TargetTypes
from sweeps.promote.promotion import Finding, Severity

FLOW_GATE = "flowControl"
PRODUCER_REFERENCES = ("prefixMatchInfoProducerName", "inFlightLoadProducerName")


class PickerConfig:
    """A configuration with its plugins by name; parts of another form than the schema's are left out."""

    def __init__(self, document: Document, target: TargetTypes) -> None:
        self.document, self.target = document, target
        content = document.content if isinstance(document.content, dict) else {}
        self.content: dict[str, Any] = content
        self.plugins = [one for one in _list(content.get("plugins")) if isinstance(one, dict)]
        self.profiles = [
            one for one in _list(content.get("schedulingProfiles")) if isinstance(one, dict)
        ]
        flow = content.get("flowControl")
        self.flow: dict[str, Any] = flow if isinstance(flow, dict) else {}
        self.by_name = {self.name(one): one for one in self.plugins}

    @staticmethod
    def name(plugin: Mapping[str, Any]) -> str:
        """A plugin's name, which is its type if none is given."""
        return str(plugin.get("name") or plugin.get("type"))

    def type_of(self, name: str) -> PluginType | None:
        """The registered type of the plugin with this name, if there is one."""
        plugin = self.by_name.get(name)
        return self.target.plugins.get(str(plugin.get("type"))) if plugin else None

    def steps(self, profile: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The plugins of a profile, in order."""
        return [one for one in _list(profile.get("plugins")) if isinstance(one, dict)]

    def kinds(self, profile: Mapping[str, Any]) -> list[str]:
        """The kinds of the plugins of a profile."""
        types = [self.type_of(str(step.get("pluginRef"))) for step in self.steps(profile)]
        return [one.kind for one in types if one is not None]

    @property
    def gates(self) -> set[str]:
        """The gates that are on."""
        texts = [one for one in _list(self.content.get("featureGates")) if isinstance(one, str)]
        return {one.partition("=")[0] for one in texts if not one.endswith("=false")}

    def bands(self) -> list[Mapping[str, Any]]:
        """The priority bands that are written out."""
        return [one for one in _list(self.flow.get("priorityBands")) if isinstance(one, dict)]

    def finding(self, severity: Severity, rule: str, message: str) -> Finding:
        """A finding about this file."""
        return Finding(severity, rule, self.document.path, message)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def picker_findings(document: Document, target: TargetTypes) -> Iterator[Finding]:
    """All findings inside one configuration."""
    config = PickerConfig(document, target)
    for rule in _RULES:
        yield from rule(config)


def _versions(config: PickerConfig) -> Iterator[Finding]:
    given, wanted = config.content.get("apiVersion"), config.target.config_api_version
    if given in config.target.config_deprecated:
        message = f"apiVersion {given} is deprecated; write {wanted}"
        yield config.finding("IMPORTANT", "deprecated", message)
    elif given != wanted:
        message = (
            f"apiVersion is {given!r}, allowed is {wanted}; the picker does not start otherwise"
        )
        yield config.finding("CRITICAL", "wrong-group", message)
    at_top = config.target.is_detector_at_top
    if at_top and "saturationDetector" in config.flow:
        message = "flowControl has saturationDetector, which this version has at the top; move it"
        yield config.finding("CRITICAL", "unknown-field", message)
    for key, instead in (
        ("saturationDetector", "flowControl.saturationDetector"),
        ("parser", "requestHandler.parsers"),
    ):
        if key in config.content and not at_top:
            message = f"{key} at the top is deprecated; write {instead}"
            yield config.finding("IMPORTANT", "deprecated", message)


def _names(config: PickerConfig) -> Iterator[Finding]:
    for what, names in (
        ("plugin", [config.name(one) for one in config.plugins]),
        ("profile", [str(one.get("name")) for one in config.profiles]),
    ):
        for name in sorted({one for one in names if names.count(one) > 1}):
            message = (
                f"{what} {name!r} is there {names.count(name)} times; give each a name of its own"
            )
            yield config.finding("CRITICAL", "duplicate-name", message)


def _types(config: PickerConfig) -> Iterator[Finding]:
    for place, plugin in enumerate(config.plugins):
        given = str(plugin.get("type"))
        kind = config.target.plugins.get(given)
        if kind is None:
            hint = closest(given, list(config.target.plugins))
            message = f"plugins[{place}]: type {given!r} is not registered{hint}"
            yield config.finding("CRITICAL", "unknown-plugin-type", message)
            continue
        if kind.deprecated:
            message = f"plugins[{place}]: {given} is deprecated; {kind.deprecated}"
            yield config.finding("IMPORTANT", "deprecated", message)
        where = f"plugins[{place}].parameters."
        given_numbers = plugin.get("parameters") or {}
        yield from schema_findings(given_numbers, kind.closed_schema(), config.document.path, where)


def _references(config: PickerConfig) -> Iterator[Finding]:
    for place, given, kinds in _all_references(config):
        name = str(given)
        if name not in config.by_name:
            known = list(config.by_name)
            message = (
                f"{place} names {name!r}, which is no plugin of the file; there are "
                f"{', '.join(known) or 'none'}{closest(name, known)}"
            )
            yield config.finding("CRITICAL", "wrong-reference", message)
            continue
        found = config.type_of(name)
        if found is not None and kinds and found.kind not in kinds:
            message = f"{place} names {name!r}, a plugin of kind {found.kind}; it takes {' or '.join(kinds)}"
            is_admitter = found.kind == "admitter" and place.startswith("schedulingProfiles")
            rule = "admitter-in-profile" if is_admitter else "wrong-reference"
            yield config.finding("CRITICAL", rule, message)


def _all_references(config: PickerConfig) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Place, name, and the kinds that the place takes."""
    for index, profile in enumerate(config.profiles):
        for at, step in enumerate(config.steps(profile)):
            place = f"schedulingProfiles[{index}].plugins[{at}].pluginRef"
            kinds = ("scorer", "filter", "picker", "detector")
            yield place, step.get("pluginRef"), kinds
    for index, band in enumerate(config.bands()):
        for key, kind in (("fairnessPolicyRef", "fairness"), ("orderingPolicyRef", "ordering")):
            if key in band:
                yield f"flowControl.priorityBands[{index}].{key}", band[key], (kind,)
    for place, holder in (("flowControl.", config.flow), ("", config.content)):
        detector = holder.get("saturationDetector")
        if isinstance(detector, dict):
            path = f"{place}saturationDetector.pluginRef"
            yield path, detector.get("pluginRef"), ("detector",)
    if "usageLimitPolicyPluginRef" in config.flow:
        key = "usageLimitPolicyPluginRef"
        yield f"flowControl.{key}", config.flow[key], ("usage-limit",)
    for index, plugin in enumerate(config.plugins):
        parameters = plugin.get("parameters")
        for key in PRODUCER_REFERENCES:
            if isinstance(parameters, dict) and key in parameters:
                yield f"plugins[{index}].parameters.{key}", parameters[key], ("producer",)


def _weights(config: PickerConfig) -> Iterator[Finding]:
    for index, profile in enumerate(config.profiles):
        for at, step in enumerate(config.steps(profile)):
            name = str(step.get("pluginRef"))
            kind = config.type_of(name)
            place = f"schedulingProfiles[{index}].plugins[{at}]"
            if kind is not None and kind.kind != "scorer" and "weight" in step:
                message = (
                    f"{place}: {name} is a {kind.kind} and has a weight; only scorers have one"
                )
                yield config.finding("CRITICAL", "weight-on-non-scorer", message)
            if kind is not None and kind.kind == "scorer" and "weight" not in step:
                message = f"{place}: {name} has no weight, so it counts 1.0; write the weight"
                yield config.finding("IMPORTANT", "weight-not-written", message)
        kinds = config.kinds(profile)
        if kinds and "picker" not in kinds:
            message = (
                f"schedulingProfiles[{index}] names no picker; write max-score-picker, the default"
            )
            yield config.finding("SUGGESTION", "picker-not-written", message)
        names = [str(step.get("pluginRef")) for step in config.steps(profile)]
        types = [str((config.by_name.get(name) or {}).get("type")) for name in names]
        if "weighted-random-picker" in types:
            message = (
                f"schedulingProfiles[{index}]: under weighted-random-picker a weight changes the odds; "
                "keep the simulated weights as they are"
            )
            yield config.finding("SUGGESTION", "weights-under-random-picker", message)


def _gates(config: PickerConfig) -> Iterator[Finding]:
    for gate in sorted(config.gates - set(config.target.feature_gates)):
        known = config.target.feature_gates
        message = f"featureGates: {gate!r} is unknown; use {', '.join(known)}{closest(gate, known)}"
        yield config.finding("CRITICAL", "unknown-gate", message)
    idle = sorted(
        set(config.flow) - {"saturationDetector"}
    )  # the detector counts without the gate too
    if idle and FLOW_GATE not in config.gates:
        message = f"flowControl has {', '.join(idle)}, but the gate flowControl is off: they have no effect; add it"
        yield config.finding("CRITICAL", "flow-control-without-gate", message)


def _handlers(config: PickerConfig) -> Iterator[Finding]:
    types = [config.type_of(config.name(one)) for one in config.plugins]
    kinds = [one.kind for one in types if one is not None]
    if len(config.profiles) > 1 and "handler" not in kinds:
        message = (
            f"there are {len(config.profiles)} profiles and no profile handler; add "
            "disagg-profile-handler, or keep one profile"
        )
        yield config.finding("CRITICAL", "handler-missing", message)


def _blocks(config: PickerConfig) -> Iterator[Finding]:
    least = config.target.least_prefix_block
    for place, plugin in enumerate(config.plugins):
        parameters = plugin.get("parameters")
        size = parameters.get("blockSizeTokens") if isinstance(parameters, dict) else None
        if isinstance(size, int) and 0 < size < least:
            message = (
                f"plugins[{place}]: blockSizeTokens {size} is raised to {least}; write {least}"
            )
            yield config.finding("IMPORTANT", "block-size-below-least", message)


def _band_rules(config: PickerConfig) -> Iterator[Finding]:
    priorities = [str(band.get("priority", 0)) for band in config.bands()]
    for priority in sorted({one for one in priorities if priorities.count(one) > 1}):
        message = f"priority {priority} has {priorities.count(priority)} bands; keep one"
        yield config.finding("CRITICAL", "duplicate-name", message)
    orders = [str(band.get("orderingPolicyRef", "")) for band in config.bands()]
    types = [str((config.by_name.get(name) or {}).get("type")) for name in orders]
    if types.count("slo-deadline-ordering-policy") > 1:
        message = (
            "slo-deadline-ordering-policy orders inside a band only, and there are several bands, which are "
            "strict; put all classes in one band, or say that the classes are strict"
        )
        yield config.finding("IMPORTANT", "order-across-bands", message)
    for index, band in enumerate(config.bands()):
        if str(band.get("maxRequests", "")) == "0":
            message = (
                f'flowControl.priorityBands[{index}]: maxRequests "0" means the default, not none'
            )
            yield config.finding("IMPORTANT", "zero-means-default", message)


_RULES: tuple[Callable[[PickerConfig], Iterator[Finding]], ...] = (
    _versions,
    _names,
    _types,
    _references,
    _weights,
    _gates,
    _handlers,
    _blocks,
    _band_rules,
)
