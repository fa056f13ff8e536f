"""Make stage 2, configuration: the files of every arm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.setting_values import plain_value
from blis_jax.core.kinds import KINDS
from blis_jax.errors import ConfigError
from blis_jax.policies import registry
from sweeps.promote.checks.documents import (
    CONFIG,
    EXPERIMENT,
    FLAGS,
    OVERLAY,
    PLUGINS,
    PRIORITY,
    TargetTypes,
    target_types,
)
from sweeps.promote.configs import engine, overlay
from sweeps.promote.configs.engine import CLASSES, StaticOrder, order_of, prefill_threshold
from sweeps.promote.configs.picker import (
    DEADLINE,
    FCFS,
    RouterQueue,
    order_plugin,
    picker_config,
    plugin_for,
    plugin_rows,
    reads_class,
    sheds_by_detector,
    with_idle_plugins,
)
from sweeps.promote.maps.rows import (
    UNCLASSED_PRIORITY,
    named_policies,
    policy_row,
    setting_row,
    without_folders,
)
from sweeps.promote.promotion import (
    BASELINE,
    CONTROL,
    TREATMENT,
    Files,
    GeneratedPlugin,
    NotMappedError,
    Promotion,
)
from sweeps.promote.texts import render, yaml_text, yaml_texts

LAYERS = ("admission", "routing", "order", "batching", "memory")


def differences(promotion: Promotion) -> dict[str, dict[str, Any]]:
    """Return the strategy's settings that are not the baseline's, by layer."""
    strategy, baseline = promotion.arm.config, promotion.baseline.config
    found: dict[str, dict[str, Any]] = {}
    for name, value in _settings(strategy).items():
        if value != _settings(baseline).get(name):
            found.setdefault(setting_row(name).layer, {})[name] = value
    return found


def _settings(config: ClusterConfig) -> dict[str, Any]:
    """Return all settings, the numbers of policies that are given one by one."""
    plain = {name: getattr(config, name) for name in FIELDS if name != "policy_numbers"}
    return plain | dict(config.policy_numbers)


def arms_of_promotion(promotion: Promotion) -> tuple[Mapping[str, ClusterConfig], list[str]]:
    """Return configurations by arm, and notes on layers that cannot stand alone."""
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
    """Hold the parts of one arm."""

    picker: Mapping[str, Any]
    flags: Mapping[str, Any]
    priorities: Mapping[str, int]  # of the classes' objectives
    overlay: Mapping[str, Any]


def config_files(promotion: Promotion, generated: Sequence[GeneratedPlugin]) -> Files:
    """Return all configuration files, below `configs/`.

    Args:
        promotion: what is promoted where.
        generated: the plugins that the compiler wrote for it.

    Raises:
        NotMappedError: the target cannot express a setting, and there is no fallback.
    """
    target = target_types(promotion.target).with_rows(plugin_rows(generated))
    configs, notes = arms_of_promotion(promotion)
    order, _ = _order(promotion, promotion.arm.config, generated)
    arms: dict[str, _Arm] = {}
    for name, config in configs.items():
        arms[name], more = _arm(promotion, name, config, generated, target, order)
        notes += [f"Arm {name}: {note}" for note in more]
    files: dict[str, str] = {f"{FOLDER}/{PLUGINS}": yaml_text(plugin_rows(generated))}
    base = arms[BASELINE].overlay
    smaller = {name: overlay.changed(base, arm.overlay) for name, arm in arms.items()}
    smaller[BASELINE] = dict(base)
    for name, arm in arms.items():
        files |= _files(f"{FOLDER}/arms/{name}", arm, smaller[name], target)
    experiment = overlay.experiment_of(promotion.name, smaller, BASELINE)
    files[f"{FOLDER}/{EXPERIMENT}"] = yaml_text(experiment)
    if order is not None:
        files[f"{FOLDER}/{PRIORITY}"] = yaml_text(_priorities(order))
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
    """Return the static key of the order; where there is none, the plugin that was generated for the router's queue.

    A key comes first: it holds in the engine too, and needs no class, which in the router's queue is a band of its own.
    """
    try:
        return order_of(promotion, config), None
    except NotMappedError:
        own = order_plugin(generated, config.scheduler, config.priority_policy)
        if own is None:
            raise
        return None, own


def _arm(
    promotion: Promotion,
    name: str,
    config: ClusterConfig,
    generated: Sequence[GeneratedPlugin],
    target: TargetTypes,
    order: StaticOrder | None,
) -> tuple[_Arm, list[str]]:
    is_plain = name in (BASELINE, CONTROL)
    is_by_class = not is_plain and (
        reads_class(_in_use(promotion, config, generated)) or sheds_by_detector(config, generated)
    )
    priorities = overlay.class_priorities(CLASSES, is_by_class)
    queue = _queue(promotion, config, generated, priorities)
    picker, notes = picker_config(promotion, config, generated, target, queue)
    if name == CONTROL:
        idle = _queue(promotion, promotion.arm.config, generated, priorities)
        if idle is not None:
            calm = RouterQueue(FCFS, (UNCLASSED_PRIORITY,), idle.most_in_flight)
            picker, notes = picker_config(promotion, config, generated, target, calm)
        picker, more = with_idle_plugins(picker, generated)
        notes = [*notes, *more]
    if is_by_class and order is not None and order.is_by_class:
        notes.append(_conflict(queue))
    flags = engine.flags_of_engine(promotion, config)
    whole = overlay.overlay_of(config, picker, flags, priorities, target)
    return _Arm(picker, flags, priorities, whole), notes


def _in_use(
    promotion: Promotion, config: ClusterConfig, generated: Sequence[GeneratedPlugin]
) -> list[GeneratedPlugin]:
    """Return the generated plugins of policies that a configuration names."""
    names = {("admission", config.admission_policy), ("routing", config.routing_policy)}
    names |= {("scorer", name) for name, _ in config.scorers()}
    found = [plugin_for(generated, kind, name) for kind, name in sorted(names)]
    found.append(_order(promotion, config, generated)[1])
    return [one for one in found if one is not None]


def _queue(
    promotion: Promotion,
    config: ClusterConfig,
    generated: Sequence[GeneratedPlugin],
    priorities: Mapping[str, int],
) -> RouterQueue | None:
    """Return the router's queue of an arm, where the order is not first come first served."""
    if sheds_by_detector(config, generated):
        return None  # with the gate on, nothing is shed by priority
    order, own = _order(promotion, config, generated)
    bands, most = _bands(priorities), config.max_num_running_reqs
    if own is not None:
        return RouterQueue(own.type_name, bands, most, own.parameters)
    if order is None or not order.is_by_class:
        return None
    return RouterQueue(DEADLINE if len(bands) == 1 else FCFS, bands, most)


def _bands(priorities: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(sorted({*priorities.values(), UNCLASSED_PRIORITY}, reverse=True))


def _conflict(queue: RouterQueue | None) -> str:
    if queue is None:
        return (
            "Shedding by class needs priorities below 0 and the gate flowControl off, so the order by class is kept "
            "in the engine alone; the shedding is kept."
        )
    return (
        "A plugin reads the class from the objective's priority, so each class has a band of its own, and bands are "
        "strict: in the router's queue classes do not age past each other. The engine's key keeps the simulated order."
    )


def _priorities(order: StaticOrder) -> dict[str, Any]:
    return {
        "kind": "EnginePriority",
        "field": "priority",
        "lower_is_earlier": True,
        "set_by": "client",
        "key": "arrival in ms - offset_ms of the class",
        "classes": {
            name: {"offset_ms": offset, "ttft_header_ms": order.headers_ms[name]}
            for name, offset in order.offsets_ms.items()
        },
    }


def _files(folder: str, arm: _Arm, part: Mapping[str, Any], target: TargetTypes) -> dict[str, str]:
    kubernetes = [overlay.pool(target), *overlay.objectives(target, arm.priorities)]
    return {
        f"{folder}/{CONFIG}": yaml_text(dict(arm.picker)),
        f"{folder}/{FLAGS}": yaml_text(dict(arm.flags)),
        f"{folder}/kubernetes.yaml": yaml_texts(kubernetes),
        f"{folder}/{OVERLAY}": yaml_text(dict(part)),
    }


def _common_notes(
    promotion: Promotion, generated: Sequence[GeneratedPlugin], order: StaticOrder | None
) -> list[str]:
    notes = []
    used = _in_use(promotion, promotion.arm.config, generated)
    for one in generated:
        if one not in used:
            notes.append(
                f"{one.type_name} is in no arm: the order is a static key, which holds in the engine too, and in one "
                "band of the router's queue the plugin could not tell the classes apart."
            )
    if used:
        names = ", ".join(one.type_name for one in used)
        notes.append(
            f"The endpoint picker must be built with {names}; set router.epp.image to that build."
        )
    else:
        notes.append(
            "No plugin was generated, so the control arm is the baseline again: an A/A test of the harness."
        )
    if order is not None and order.is_by_class:
        notes.append(
            "vLLM orders by class only where the client or a gateway sets the request field `priority` as in "
            f"{PRIORITY}; the router's queue orders by objective or header and holds requests back from "
            f"{promotion.arm.config.max_num_running_reqs} in flight per endpoint."
        )
    notes.append(
        "The scenario's own serve command passes --no-enable-prefix-caching, so each overlay replaces the command."
    )
    return notes


# --- the translation report: every setting in effect, where it went, what was put in its place ------


def _policy_cells(promotion: Promotion) -> list[list[str]]:
    found = []
    for kind, name in sorted(named_policies(promotion)):
        row = policy_row(kind, name)
        if row is None:
            found.append(
                [f"{kind} {without_folders(name)}", "code", "generated plugin", "from a file"]
            )
        else:
            found.append([f"{kind} {name}", row.status, row.knob, row.rule])
    return found


def _setting_cells(
    promotion: Promotion, strategy: ClusterConfig, baseline: ClusterConfig
) -> list[list[str]]:
    found = []
    for name in FIELDS:
        if not _is_in_effect(strategy, name):
            continue
        row = setting_row(name)
        status, rule = _status(promotion, strategy, name)
        values = (plain_value(getattr(config, name)) for config in (strategy, baseline))
        value, before = (
            without_folders(str(one)) if one not in ("", [], ()) else "none" for one in values
        )
        found.append(
            [f"`{name}`", value, "same" if value == before else before, status, row.knob, rule]
        )
    return found


def _is_in_effect(config: ClusterConfig, name: str) -> bool:
    one = registry.settings().get(name)
    if one is None:
        return True
    chosen = getattr(config, KINDS[one.kind].setting)
    used = [chosen] if one.kind != "scorer" else [scorer for scorer, _ in config.scorers()]
    return any(policy in used for policy in one.policies)


def _status(promotion: Promotion, config: ClusterConfig, name: str) -> tuple[str, str]:
    """Return the row's status, or that of the very value."""
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
