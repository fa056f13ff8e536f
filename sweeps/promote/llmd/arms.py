"""Make stage 2: the configuration files of every arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.setting_values import plain_value
from blis_jax.core.kinds import KINDS
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from sweeps.promote.llmd import deployment
from sweeps.promote.llmd.deployment import CLASSES, StaticOrder, order_of, prefill_threshold
from sweeps.promote.llmd.documents import (
    CONFIG,
    FLAGS,
    OVERLAY,
    PLUGINS,
    TargetTypes,
    target_types,
)
from sweeps.promote.llmd.picker import (
    FCFS,
    IN_FLIGHT_DETECTOR,
    RouterQueue,
    picker_config,
    queue_of_settings,
    sheds_by_detector,
    with_idle_plugins,
)
from sweeps.promote.maps import (
    UNCLASSED_PRIORITY,
    named_policies,
    policy_row,
    setting_row,
    without_folders,
)
from sweeps.promote.promotion import (
    ARMS,
    BASELINE,
    CONTROL,
    TREATMENT,
    Files,
    GeneratedPlugin,
    NotMappedError,
    Promotion,
    not_mapped,
    order_plugin,
    plugin_for,
    plugin_rows,
    reads_class,
)
from sweeps.promote.store import render, yaml_text

# of a workload that does not say; half of a test's wait in the router's queue
USUAL_REQUESTS = 1000
LAYERS = ("admission", "routing", "order", "batching", "memory")


def differences(promotion: Promotion) -> dict[str, dict[str, Any]]:
    """Return the strategy's settings that differ from the baseline's, by layer."""
    strategy, baseline = promotion.arm.config, promotion.baseline.config
    changes: dict[str, dict[str, Any]] = {}
    for name, value in _settings(strategy).items():
        if value != _settings(baseline).get(name):
            changes.setdefault(setting_row(name).layer, {})[name] = value
    return changes


def _settings(config: ClusterConfig) -> dict[str, Any]:
    """Return all settings by name, with each policy number as a setting of its own."""
    plain = {name: getattr(config, name) for name in FIELDS if name != "policy_numbers"}
    return plain | dict(config.policy_numbers)


def arms_of_promotion(promotion: Promotion) -> tuple[Mapping[str, ClusterConfig], list[str]]:
    """Return the configurations by arm, and notes on layers that cannot have an ablation arm."""
    base, notes = promotion.baseline.config, []
    arms = {BASELINE: base, CONTROL: base, TREATMENT: promotion.arm.config}
    layers = {name: changes for name, changes in differences(promotion).items() if name in LAYERS}
    if len(layers) > 1:
        for name in sorted(layers, key=LAYERS.index):
            try:
                arms[f"ablation-{name}"] = base.replace(**layers[name])
            except ConfigError as error:
                notes.append(f"The layer {name} has no arm of its own: {error}.")
    return arms, notes


FOLDER = "configs"
REPORT = f"{FOLDER}/translation-report.md"


@dataclass(frozen=True)
class _Arm:
    """Hold the files of one arm as data."""

    picker: Mapping[str, Any]
    flags: Mapping[str, Any]
    overlay: Mapping[str, Any]


def config_files(promotion: Promotion, generated: Sequence[GeneratedPlugin]) -> Files:
    """Return all configuration files below `configs/`, by path.

    Args:
        promotion: the strategy, its baseline and the target.
        generated: the plugins that the compiler wrote for the promotion.

    Raises:
        NotMappedError: the target cannot express a setting, and there is no fallback.
    """
    target = target_types(promotion.target).with_rows(plugin_rows(generated))
    configs, notes = arms_of_promotion(promotion)
    order, _ = _order(promotion, promotion.arm.config, generated)
    arms: dict[str, _Arm] = {}
    for name, config in configs.items():
        arms[name], more = _arm(promotion, name, config, generated, target)
        notes += [f"Arm {name}: {note}" for note in more]
    for name in [name for name in arms if name not in ARMS]:
        if arms[name] in (arms[BASELINE], arms[TREATMENT]):
            del arms[name]
            notes.append(
                f"There is no arm {name}: the target would run it as baseline or treatment."
            )
    files: dict[str, str] = {f"{FOLDER}/{PLUGINS}": yaml_text(plugin_rows(generated))}
    base = arms[BASELINE].overlay
    for name, arm in arms.items():
        part = base if name == BASELINE else deployment.changed(base, arm.overlay)
        folder = f"{FOLDER}/arms/{name}"
        files[f"{folder}/{CONFIG}"] = yaml_text(dict(arm.picker))
        files[f"{folder}/{FLAGS}"] = yaml_text(dict(arm.flags))
        files[f"{folder}/{OVERLAY}"] = yaml_text(dict(part))
    notes += _common_notes(promotion, generated, order)
    files[REPORT] = render(
        "translation-report.md.j2",
        promotion=promotion,
        arms=list(arms),
        policies=_policy_cells(promotion),
        settings=_setting_cells(promotion, promotion.arm.config, promotion.baseline.config),
        order=order,
        notes=notes,
    )
    return files


def _order(
    promotion: Promotion, config: ClusterConfig, generated: Sequence[GeneratedPlugin]
) -> tuple[StaticOrder | None, GeneratedPlugin | None]:
    """Return the order as a static key if possible, else as the plugin generated for the router's queue.

    A static key is preferred: the engine orders by it, where the requests wait, and needs no class from the router.
    """
    try:
        return order_of(promotion, config), None
    except NotMappedError:
        plugin = order_plugin(generated, config.scheduler, config.priority_policy)
        if plugin is None:
            raise
        return None, plugin


def _arm(
    promotion: Promotion,
    name: str,
    config: ClusterConfig,
    generated: Sequence[GeneratedPlugin],
    target: TargetTypes,
) -> tuple[_Arm, list[str]]:
    is_plain = name in (BASELINE, CONTROL)
    is_by_class = config.flow_control or (
        not is_plain
        and (
            reads_class(_in_use(promotion, config, generated))
            or sheds_by_detector(config, generated)
        )
    )
    priorities = deployment.class_priorities(CLASSES, is_by_class)
    order, _ = _order(promotion, config, generated)
    is_ordered = order is not None and order.is_by_class
    queue = _queue(promotion, config, generated, priorities)
    picker, notes = picker_config(
        promotion, config, generated, target, queue, is_ordered=is_ordered
    )
    if name == CONTROL:
        idle = _queue(promotion, promotion.arm.config, generated, priorities)
        if idle is not None:
            calm = replace(idle, ordering=FCFS, priorities=(UNCLASSED_PRIORITY,), parameters={})
            picker, notes = picker_config(
                promotion, config, generated, target, calm, is_ordered=False
            )
        picker, more = with_idle_plugins(picker, generated)
        notes = [*notes, *more]
    flags = deployment.flags_of_engine(promotion, config)
    generated_types = {row["type"] for row in plugin_rows(generated)} & {
        plugin["type"] for plugin in picker["plugins"]
    }
    image = promotion.image if generated_types else ""
    whole = deployment.overlay_of(config, picker, flags, priorities, target, image)
    return _Arm(picker, flags, whole), notes


def _in_use(
    promotion: Promotion, config: ClusterConfig, generated: Sequence[GeneratedPlugin]
) -> list[GeneratedPlugin]:
    """Return the generated plugins of the policies that a configuration uses."""
    names = {("admission", config.admission_policy), ("routing", config.routing_policy)}
    names |= {("scorer", name) for name, _ in config.scorers()}
    plugins = [plugin_for(generated, kind, name) for kind, name in sorted(names)]
    plugins.append(_order(promotion, config, generated)[1])
    return [plugin for plugin in plugins if plugin is not None]


def _queue(
    promotion: Promotion,
    config: ClusterConfig,
    generated: Sequence[GeneratedPlugin],
    priorities: Mapping[str, int],
) -> RouterQueue | None:
    """Return the router's queue of an arm, as its settings or a generated order require; None if neither needs one."""
    bands = tuple(sorted({*priorities.values(), UNCLASSED_PRIORITY}, reverse=True))
    plugin = _order(promotion, config, generated)[1]
    if plugin is None:
        return queue_of_settings(config, bands) if config.flow_control else None
    if config.flow_control or sheds_by_detector(config, generated):
        problem = (
            "the order needs a queue of its own in the router, and the settings ask for another"
        )
        proposal = "leave flow control and the gate out, or use scheduler priority-fcfs"
        raise not_mapped(promotion, "scheduler", f"{config.scheduler}: {problem}", proposal)
    requests = deployment.workload_of_promotion(promotion).num_requests or USUAL_REQUESTS
    most = min(config.max_num_running_reqs, max(1, requests // (2 * config.num_instances)))
    in_flight = {"concurrencyMode": "requests", "maxConcurrency": most}
    return RouterQueue(plugin.type_name, bands, (IN_FLIGHT_DETECTOR, in_flight), plugin.parameters)


def _common_notes(
    promotion: Promotion, generated: Sequence[GeneratedPlugin], order: StaticOrder | None
) -> list[str]:
    notes = []
    if generated:
        names = ", ".join(plugin.type_name for plugin in generated)
        notes.append(
            f"The endpoint picker must be built with {names}; --image names that build, {promotion.image} here."
        )
    else:
        notes.append(
            "No plugin was generated, so the control arm is the baseline again: an A/A test of the harness."
        )
    if order is not None and order.is_by_class:
        notes.append(
            "vLLM orders by the request field `priority`. No harness sends it and the router does not write it, so "
            "engine-priority does, from the objective that the request names."
        )
    if any(plugin.kind == "admission" for plugin in generated):
        notes.append(DENIED)
    notes.append(
        "The scenario's own serve command passes --no-enable-prefix-caching, so each overlay replaces the command."
    )
    return notes


DENIED = (
    "The target's director wraps every denial of an admitter as an internal error, so clients see 500 and not 429. A "
    "shed request is known by the plugin's words in the body. Three ways out: a filter that leaves no endpoint (429), "
    "utilization-detector with priorities below 0 (429), or the change of go/denial.patch, which keeps the code."
)


# --- the translation report: every setting in effect, where it went, what was put in its place ------


def _policy_cells(promotion: Promotion) -> list[list[str]]:
    cells = []
    for kind, name in sorted(named_policies(promotion)):
        row = policy_row(kind, name)
        if row is None:
            cells.append(
                [f"{kind} {without_folders(name)}", "code", "generated plugin", "from a file"]
            )
        else:
            cells.append([f"{kind} {name}", row.status, row.knob, row.rule])
    return cells


def _setting_cells(
    promotion: Promotion, strategy: ClusterConfig, baseline: ClusterConfig
) -> list[list[str]]:
    cells = []
    for name in FIELDS:
        if not _is_in_effect(strategy, name):
            continue
        row = setting_row(name)
        status, rule = _status(promotion, strategy, name)
        values = (plain_value(getattr(config, name)) for config in (strategy, baseline))
        value, before = (
            without_folders(str(value)) if value not in ("", [], ()) else "none" for value in values
        )
        cells.append(
            [f"`{name}`", value, "same" if value == before else before, status, row.knob, rule]
        )
    return cells


def _is_in_effect(config: ClusterConfig, name: str) -> bool:
    setting = registry.settings().get(name)
    if setting is None:
        return True
    chosen = getattr(config, KINDS[setting.kind].setting)
    used = [chosen] if setting.kind != "scorer" else [scorer for scorer, _ in config.scorers()]
    return any(policy in used for policy in setting.policies)


def _status(promotion: Promotion, config: ClusterConfig, name: str) -> tuple[str, str]:
    """Return status and rule of a setting's row, or for some settings those of the present value."""
    row = setting_row(name)
    if name.startswith("slo_prefill"):
        threshold, is_exact = prefill_threshold(promotion, config)
        if is_exact:
            return "exact", f"all classes have {threshold}"
        return "none", f"{row.rule}; here {threshold}, that of the class with the most requests"
    if name.startswith("slo_threshold") and getattr(config, name) == 0:
        return "exact", "no grace period"
    if row.status == "none":
        return "none", f"{row.rule}; instead: {row.fallback}"
    return row.status, row.rule


__all__ = ["FOLDER", "REPORT", "TREATMENT", "config_files"]
