"""The arms of a promotion: baseline, control, treatment, and one for each layer in which the strategy differs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.errors import ConfigError
from sweeps.promote.maps.rows import setting_row
from sweeps.promote.promotion import Promotion

BASELINE, CONTROL, TREATMENT = "baseline", "control", "treatment"
LAYERS = ("admission", "routing", "order", "batching", "memory")


def differences(promotion: Promotion) -> dict[str, dict[str, Any]]:
    """The strategy's settings that are not the baseline's, by layer."""
    strategy, baseline = promotion.arm.config, promotion.baseline.config
    found: dict[str, dict[str, Any]] = {}
    for name in FIELDS:
        value = getattr(strategy, name)
        if value != getattr(baseline, name):
            found.setdefault(setting_row(name).layer, {})[name] = value
    return found


def arms_of_promotion(promotion: Promotion) -> tuple[Mapping[str, ClusterConfig], list[str]]:
    """Configurations by arm, and notes on layers that cannot stand alone."""
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
