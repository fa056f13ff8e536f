"""Stage 2, configuration: the files of every arm, and the translation report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from sweeps.promote.checks.documents import CONFIG, EXPERIMENT, FLAGS, OVERLAY, PLUGINS, PRIORITY
from sweeps.promote.checks.target_types import PluginType, TargetTypes, target_types
from sweeps.promote.configs import engine, objects, overlay, report
from sweeps.promote.configs.generated import (
    KINDS,
    PluginLike,
    order_plugin,
    plugin_for,
    plugin_rows,
    reads_class,
    stability_of,
)
from sweeps.promote.configs.layers import BASELINE, CONTROL, TREATMENT, arms_of_promotion
from sweeps.promote.configs.ordering import CLASSES, StaticOrder, order_of
from sweeps.promote.configs.picker import (
    DEADLINE,
    FCFS,
    RouterQueue,
    picker_config,
    sheds_by_detector,
    with_idle_plugins,
)
from sweeps.promote.maps.classes import UNCLASSED_PRIORITY
from sweeps.promote.maps.plain import yaml_text, yaml_texts
from sweeps.promote.promotion import Files, NotMappedError, Promotion

FOLDER = "configs"
REPORT = f"{FOLDER}/translation-report.md"


@dataclass(frozen=True)
class _Arm:
    """The parts of one arm."""

    picker: Mapping[str, Any]
    flags: Mapping[str, Any]
    priorities: Mapping[str, int]  # of the classes' objectives
    overlay: Mapping[str, Any]


def config_files(promotion: Promotion, generated: Sequence[PluginLike]) -> Files:
    """All configuration files, below `configs/`.

    Args:
        promotion: what is promoted where.
        generated: the plugins that the compiler wrote for it.

    Raises:
        NotMappedError: the target cannot express a setting, and there is no fallback.
    """
    target = target_types(promotion.target).with_plugins(_types(generated))
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
    experiment = overlay.experiment_of(_short_name(promotion), smaller, BASELINE)
    files[f"{FOLDER}/{EXPERIMENT}"] = yaml_text(experiment)
    if order is not None:
        files[f"{FOLDER}/{PRIORITY}"] = yaml_text(_priorities(order))
    notes += _common_notes(promotion, generated, order)
    files[REPORT] = report.report_text(promotion, order, list(arms), notes)
    return files


def _types(generated: Sequence[PluginLike]) -> dict[str, PluginType]:
    return {
        one.type_name: PluginType.model_validate(
            {
                "kind": KINDS[one.kind],
                "stability": stability_of(one),
                "parameters": dict.fromkeys(one.parameters, "number"),
            }
        )
        for one in generated
    }


def _short_name(promotion: Promotion) -> str:
    strategy = promotion.arm.strategy
    return strategy.name if strategy is not None else promotion.arm.name


def _order(
    promotion: Promotion, config: ClusterConfig, generated: Sequence[PluginLike]
) -> tuple[StaticOrder | None, PluginLike | None]:
    """The static key of the order; where there is none, the plugin that was generated for the router's queue.

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
    generated: Sequence[PluginLike],
    target: TargetTypes,
    order: StaticOrder | None,
) -> tuple[_Arm, list[str]]:
    is_plain = name in (BASELINE, CONTROL)
    is_by_class = not is_plain and (
        reads_class(_in_use(promotion, config, generated)) or sheds_by_detector(config, generated)
    )
    priorities = objects.class_priorities(CLASSES, is_by_class)
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
    promotion: Promotion, config: ClusterConfig, generated: Sequence[PluginLike]
) -> list[PluginLike]:
    """The generated plugins of policies that a configuration names."""
    names = {("admission", config.admission_policy), ("routing", config.routing_policy)}
    names |= {("scorer", name) for name, _ in config.scorers()}
    found = [plugin_for(generated, kind, name) for kind, name in sorted(names)]
    found.append(_order(promotion, config, generated)[1])
    return [one for one in found if one is not None]


def _queue(
    promotion: Promotion,
    config: ClusterConfig,
    generated: Sequence[PluginLike],
    priorities: Mapping[str, int],
) -> RouterQueue | None:
    """The router's queue of an arm, where the order is not first come first served."""
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
    kubernetes = [objects.pool(target), *objects.objectives(target, arm.priorities)]
    return {
        f"{folder}/{CONFIG}": yaml_text(dict(arm.picker)),
        f"{folder}/{FLAGS}": yaml_text(dict(arm.flags)),
        f"{folder}/kubernetes.yaml": yaml_texts(kubernetes),
        f"{folder}/{OVERLAY}": yaml_text(dict(part)),
    }


def _common_notes(
    promotion: Promotion, generated: Sequence[PluginLike], order: StaticOrder | None
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


__all__ = ["FOLDER", "REPORT", "TREATMENT", "config_files"]
