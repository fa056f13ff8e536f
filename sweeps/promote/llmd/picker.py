"""Write the EndpointPickerConfig of one arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.named_policies import admission_name, numbered
from blis_jax.core.kinds import NONE, ROUTER, SAME
from sweeps.promote.llmd.deployment import numbers_of_policy
from sweeps.promote.llmd.documents import TargetTypes
from sweeps.promote.llmd.roles import POOLS, PodRoles, roles_of, with_roles
from sweeps.promote.maps import policy_row
from sweeps.promote.promotion import (
    GeneratedPlugin,
    Promotion,
    not_mapped,
    parameters_of,
    plugin_for,
)
from sweeps.strategies.moved import known_as

DETECTOR, IN_FLIGHT_DETECTOR = "utilization-detector", "concurrency-detector"
LIFTED = {"queueDepthThreshold": 999_999_999, "kvCacheUtilThreshold": 1.0}  # nothing is shed
CEILING = "static-usage-limit-policy"
PRECISE, TOKENS = "precise-prefix-cache-producer", "token-producer"
EVENTS = "endpoint-notification-source"
TOKENISER = "http://localhost:8000"  # the picker's render endpoint, as in the target's sample
BEST = "max-score-picker"
FCFS, DEADLINE = "fcfs-ordering-policy", "slo-deadline-ordering-policy"
QUEUE_TTL = "3600s"  # the simulated queues have no limit of time


MOST_REQUESTS, MOST_BYTES = "1000000000", "1000T"  # of a band: no simulated one is bounded


@dataclass(frozen=True)
class RouterQueue:
    """Hold an arm's flow control: the order of the router's queue, its bands, and when requests are held back."""

    ordering: str  # type of the ordering plugin
    priorities: tuple[int, ...]  # of the bands
    detector: tuple[str, Mapping[str, Any]]  # type and parameters of what says when requests wait
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of the ordering plugin
    fairness: str = "global-strict-fairness-policy"
    limits: Mapping[str, Any] = field(default_factory=dict)  # of the whole queue
    most_in_band: str = MOST_REQUESTS
    ceiling: float = 1.0  # share of saturation from which nothing is dispatched


def queue_of_settings(config: ClusterConfig, priorities: Sequence[int]) -> RouterQueue:
    """Return the flow control that a configuration sets; a limit of 0 means unlimited, which is written explicitly."""
    depth = max(1, round(config.queue_depth_threshold))
    by_load = {"queueDepthThreshold": depth, "kvCacheUtilThreshold": config.kv_cache_util_threshold}
    in_flight = {"concurrencyMode": "requests", "maxConcurrency": config.max_concurrency}
    detectors: dict[str, tuple[str, Mapping[str, Any]]] = {
        "utilization": (DETECTOR, by_load),
        "concurrency": (IN_FLIGHT_DETECTOR, in_flight),
    }
    whole = config.max_gateway_queue_depth
    return RouterQueue(
        DEADLINE if config.dispatch_order == "slo-deadline" else FCFS,
        tuple(priorities),
        detectors.get(config.saturation_detector, (DETECTOR, LIFTED)),
        fairness=f"{config.fairness_policy}-fairness-policy",
        limits=({"maxRequests": str(whole)} if whole else {})
        | {"defaultRequestTTL": f"{config.request_ttl}us" if config.request_ttl else QUEUE_TTL},
        most_in_band=str(config.per_band_capacity or MOST_REQUESTS),
        ceiling=config.usage_limit_threshold,
    )


@dataclass
class _Picker:
    """Hold a picker configuration under construction."""

    plugins: list[dict[str, Any]] = field(default_factory=list)
    steps: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, kind: str, parameters: Mapping[str, Any] | None = None, name: str = "") -> None:
        """Add a plugin unless its name exists already; the name is the type unless `name` is given."""
        if all((plugin.get("name") or plugin["type"]) != (name or kind) for plugin in self.plugins):
            named = {"name": name} if name and name != kind else {}
            with_parameters = {"parameters": dict(parameters)} if parameters else {}
            self.plugins.append({**named, "type": kind, **with_parameters})

    def step(self, kind: str, weight: float | None = None) -> None:
        """Add a reference to a plugin to the profile."""
        self.steps.append({"pluginRef": kind} | ({} if weight is None else {"weight": weight}))


def picker_config(
    promotion: Promotion,
    config: ClusterConfig,
    generated: Sequence[GeneratedPlugin],
    target: TargetTypes,
    queue: RouterQueue | None,
    *,
    is_ordered: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Return the picker configuration as plain data, and notes; `is_ordered`: the engine orders by class.

    Raises:
        NotMappedError: a policy has no counterpart in the target, and no plugin was generated for it.
    """
    picker = _Picker()
    roles = roles_of(config, target)
    _refuse_mixed(promotion, config, roles)
    _routing(promotion, config, generated, target, picker)
    flow = _admission(promotion, config, generated, picker)
    for plugin in generated:
        if plugin.kind == "request" and is_ordered:
            picker.add(plugin.type_name, plugin.parameters)
    if roles.use == POOLS:
        picker.notes.append(
            f"{roles.decider} says before a request runs whether a prefill endpoint computes its prompt."
        )
    document = _document(target, picker, _with_queue(picker, queue, flow))
    return with_roles(document, roles), picker.notes


def with_idle_plugins(
    document: Mapping[str, Any], generated: Sequence[GeneratedPlugin]
) -> tuple[dict[str, Any], list[str]]:
    """Return the control arm's configuration: the promotion's plugins run, but have no effect."""
    plugins = [dict(plugin) for plugin in document["plugins"]]
    profiles = [
        {**profile, "plugins": list(profile["plugins"])}
        for profile in document["schedulingProfiles"]
    ]
    notes = []
    present = {plugin["type"] for plugin in plugins}
    for plugin in generated:
        if plugin.kind in ("scorer", "routing") and plugin.type_name not in present:
            entry = {"parameters": dict(plugin.parameters)} if plugin.parameters else {}
            plugins.insert(0, {"type": plugin.type_name, **entry})
            for profile in profiles:
                steps = profile["plugins"]
                steps.insert(_first_scorer(steps), {"pluginRef": plugin.type_name, "weight": 0.0})
            notes.append(
                f"{plugin.type_name} runs with weight 0, so it is computed and changes no pick."
            )
        elif plugin.kind == "request":
            plugins.insert(0, {"type": plugin.type_name})
            notes.append(f"{plugin.type_name} runs without leads, so it writes nothing.")
        elif plugin.kind == "admission":
            neutral = _neutral(plugin)
            if neutral is None:
                notes.append(
                    f"{plugin.type_name} has no numbers under which it admits everything, so the control arm is "
                    "without it."
                )
            else:
                plugins.insert(0, {"type": plugin.type_name, "parameters": neutral})
                notes.append(
                    f"{plugin.type_name} runs with numbers under which it admits everything."
                )
    return {**document, "plugins": plugins, "schedulingProfiles": profiles}, notes


def _first_scorer(steps: Sequence[Mapping[str, Any]]) -> int:
    return next((place for place, step in enumerate(steps) if "weight" in step), len(steps) - 1)


def _neutral(plugin: GeneratedPlugin) -> dict[str, Any] | None:
    row = policy_row("admission", plugin.simulated_name)
    if row is None or row.neutral is None:
        return None
    return parameters_of(plugin, row.neutral)


def _refuse_mixed(promotion: Promotion, config: ClusterConfig, roles: PodRoles) -> None:
    """Refuse instances with their own numbers, routers that differ between roles, and a CPU tier with pools."""
    if any(group.numbers() for group in config.instances):
        problem = (
            "groups of instances have numbers of their own, and one deployment has one set of flags"
        )
        proposal = "promote the strategy on equal instances, and test mixed ones by gap mixed-gpus"
        raise not_mapped(promotion, "instances", problem, proposal)
    if roles.use == POOLS and config.kv_cpu_blocks:
        problem = (
            "vLLM's CPU tier takes the place of the connector by which prompts move between pods"
        )
        raise not_mapped(promotion, "kv_cpu_blocks", problem, "set kv_cpu_blocks to 0 with roles")
    if config.hand_over_policy != NONE:
        for setting in (kind.decode_setting for kind in ROUTER):
            if getattr(config, setting) not in ("", SAME):
                problem = "this command writes the same scorers and picker for both pools"
                proposal = "leave it out, or write the decode profile by hand"
                raise not_mapped(promotion, setting, problem, proposal)


def _routing(
    promotion: Promotion,
    config: ClusterConfig,
    generated: Sequence[GeneratedPlugin],
    target: TargetTypes,
    picker: _Picker,
) -> None:
    name = known_as(config.routing_policy)
    scored = plugin_for(generated, "scorer", name) if name != "weighted" else None
    plugin = scored or plugin_for(generated, "routing", name)
    if plugin is not None:
        if scored is not None:
            picker.notes.append(
                f"{name} chooses the endpoint with the best score, so {scored.type_name} rates and {BEST} picks. Ties, "
                f"which {_ties(config)} breaks in the simulator, are broken by {BEST}'s own chance."
            )
        _own(picker, plugin, numbers_of_policy(numbered(config).routing), 1.0)
        _end(picker, BEST)
        return
    if name != "weighted":
        row = policy_row("routing", name)
        if row is None or not row.plugin:
            problem = row.rule if row else "a routing policy of a file is compiled only as a scorer"
            proposal = (row.proposal if row else "") or "write it as a scorer of weighted routing"
            raise not_mapped(promotion, "routing_policy", f"{name}: {problem}", proposal)
        picker.notes.append(f"{name}: {row.plugin}; {row.rule}.")
        if target.plugins[row.plugin].kind == "picker":
            _end(picker, row.plugin)
            return
        picker.add(row.plugin)
        picker.step(row.plugin, 1.0)
        _end(picker, BEST)
        return
    policies = {text: policy for (text, _), (policy, _) in _pairs(config)}
    for text, weight in config.scorers():
        numbers = numbers_of_policy(policies[text])
        _scorer(promotion, config, (text, weight), numbers, generated, picker)
    row = policy_row("picker", config.routing_picker)
    if row is None:
        problem = "a picker of a file is not compiled"
        raise not_mapped(promotion, "routing_picker", problem, "use first-best or weighted-random")
    _end(picker, row.plugin)


def _ties(config: ClusterConfig) -> str:
    return "BLIS's seeded stream" if numbered(config).routing.may_draw else "the order of endpoints"


def _own(
    picker: _Picker, plugin: GeneratedPlugin, numbers: Mapping[str, float], weight: float
) -> None:
    """Add a generated plugin to the configuration and to the profile."""
    picker.add(plugin.type_name, parameters_of(plugin, numbers))
    picker.step(plugin.type_name, weight)


def _pairs(config: ClusterConfig) -> Any:
    return zip(config.scorers(), numbered(config).scorers, strict=True)


def _end(picker: _Picker, kind: str) -> None:
    picker.add(kind, {"maxNumOfEndpoints": 1})
    picker.step(kind)


def _scorer(
    promotion: Promotion,
    config: ClusterConfig,
    named: tuple[str, float],  # with its weight
    numbers: Mapping[str, float],
    generated: Sequence[GeneratedPlugin],
    picker: _Picker,
) -> None:
    text, weight = known_as(named[0]), named[1]
    row = policy_row("scorer", text)
    plugin = plugin_for(generated, "scorer", text)
    if plugin is not None:
        _own(picker, plugin, numbers, weight)
    elif row is not None and row.plugin:
        if not row.producer:
            picker.add(row.plugin)
            picker.step(row.plugin, weight)
            return
        name, producer = row.plugin, PRECISE if config.precise_kv_routing else row.producer
        if producer == PRECISE:
            name = f"precise-{row.plugin}"
            size = {"blockSize": config.block_size_in_tokens}
            picker.add(PRECISE, {"tokenProcessorConfig": size})
            picker.add(TOKENS, {"modelName": config.model, "vllm": {"url": TOKENISER}})
            picker.add(EVENTS)
        else:
            picker.add(producer, {"autoTune": False, "blockSizeTokens": 64})
        picker.add(row.plugin, {"prefixMatchInfoProducerName": producer}, name)
        picker.step(name, weight)
    else:
        problem = "the target has no such scorer, and none was generated for it"
        setting = f"routing_scorers.{text}"
        raise not_mapped(promotion, setting, problem, "make it pass the compiler, or leave it out")


def _admission(
    promotion: Promotion,
    config: ClusterConfig,
    generated: Sequence[GeneratedPlugin],
    picker: _Picker,
) -> dict[str, Any]:
    """Add the admission plugin or the detector's thresholds; return flow control's reference to the detector."""
    name = known_as(admission_name(config))
    plugin = plugin_for(generated, "admission", name)
    thresholds: dict[str, Any] = dict(LIFTED)
    row = policy_row("admission", name)
    if plugin is not None:
        numbers = numbers_of_policy(numbered(config).admission)
        picker.add(plugin.type_name, parameters_of(plugin, numbers))
    elif name == "gaie-legacy":
        depth = max(1, round(config.gaie_qd_threshold))
        thresholds = {
            "queueDepthThreshold": depth,
            "kvCacheUtilThreshold": config.gaie_kv_threshold,
        }
        if depth != config.gaie_qd_threshold:
            picker.notes.append(
                f"gaie_qd_threshold {config.gaie_qd_threshold:g} is {depth} there, a whole number."
            )
    elif row is not None and row.fallback:
        depth = max(1, round(config.slo_gated_threshold))
        thresholds = {"queueDepthThreshold": depth, "kvCacheUtilThreshold": 1.0}
        picker.notes.append(f"{name}: no plugin was generated; {row.fallback}.")
    elif row is None or row.status != "exact":
        problem = row.rule if row else "an admission policy of a file needs a generated plugin"
        proposal = (row.proposal if row else "") or "make it pass the compiler, or use always-admit"
        raise not_mapped(promotion, "admission_policy", f"{name}: {problem}", proposal)
    picker.add(DETECTOR, thresholds)
    return {"saturationDetector": {"pluginRef": DETECTOR}}


def sheds_by_detector(config: ClusterConfig, generated: Sequence[GeneratedPlugin]) -> bool:
    """Return whether the detector's thresholds shed classes, because the admission policy has no generated plugin."""
    name = known_as(admission_name(config))
    row = policy_row("admission", name)
    has_own = plugin_for(generated, "admission", name) is not None
    return not has_own and row is not None and (bool(row.fallback) or name == "gaie-legacy")


def _with_queue(picker: _Picker, queue: RouterQueue | None, flow: dict[str, Any]) -> dict[str, Any]:
    if queue is None:
        return flow
    picker.plugins[:] = [plugin for plugin in picker.plugins if plugin["type"] != DETECTOR]
    picker.add(*queue.detector)
    picker.add(queue.ordering, queue.parameters)
    picker.add(queue.fairness)
    limit = {}
    if queue.ceiling < 1:
        picker.add(CEILING, {"threshold": queue.ceiling})
        limit = {"usageLimitPolicyPluginRef": CEILING}
    return {
        "defaultRequestTTL": QUEUE_TTL,
        **queue.limits,
        "saturationDetector": {"pluginRef": queue.detector[0]},
        **limit,
        "priorityBands": [
            {
                "priority": priority,
                "maxRequests": queue.most_in_band,
                "maxBytes": MOST_BYTES,
                "fairnessPolicyRef": queue.fairness,
                "orderingPolicyRef": queue.ordering,
            }
            for priority in sorted(queue.priorities, reverse=True)
        ],
    }


def _document(target: TargetTypes, picker: _Picker, flow: Mapping[str, Any]) -> dict[str, Any]:
    gates = {"featureGates": ["flowControl"]} if "priorityBands" in flow else {}
    return {
        "apiVersion": target.config_api_version,
        "kind": "EndpointPickerConfig",
        **gates,
        "plugins": picker.plugins,
        **_data_layer(picker),
        "schedulingProfiles": [{"name": "default", "plugins": picker.steps}],
        **_flow(target, flow),
    }


def _data_layer(picker: _Picker) -> dict[str, Any]:
    """Return the data layer with the source of cache events, beside the metrics that every picker scrapes."""
    if all(plugin["type"] != PRECISE for plugin in picker.plugins):
        return {}
    pairs = (("metrics-data-source", "core-metrics-extractor"), (EVENTS, PRECISE))
    for kind in pairs[0]:
        picker.add(kind)
    sources = [{"pluginRef": source, "extractors": [{"pluginRef": to}]} for source, to in pairs]
    return {"dataLayer": {"sources": sources}}


def _flow(target: TargetTypes, flow: Mapping[str, Any]) -> dict[str, Any]:
    """Return flow control, with the detector at the place that the version expects."""
    if not target.is_detector_at_top:
        return {"flowControl": dict(flow)}
    rest = {name: value for name, value in flow.items() if name != "saturationDetector"}
    detector = {"saturationDetector": flow["saturationDetector"]}
    return detector | ({"flowControl": rest} if rest else {})
