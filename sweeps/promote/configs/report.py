"""The translation report: every setting in effect, its status, where it went, and what was put in its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.setting_values import plain_value
from blis_jax.policies import registry
from sweeps.promote.configs.engine import prefill_threshold
from sweeps.promote.configs.ordering import StaticOrder
from sweeps.promote.maps.page import table
from sweeps.promote.maps.rows import policy_row, setting_row
from sweeps.promote.maps.stage import named_policies, without_folders
from sweeps.promote.promotion import Promotion


def report_text(
    promotion: Promotion, order: StaticOrder | None, arms: Sequence[str], notes: Sequence[str]
) -> str:
    """Markdown; the rows come from Map A."""
    strategy, baseline = promotion.arm.config, promotion.baseline.config
    lines = [
        f"# Translation of {promotion.given}",
        "",
        f"Target {promotion.target}, baseline {promotion.baseline.name}. Arms: {', '.join(arms)}. The arms differ from "
        "the baseline's overlay by what their own overlays list.",
        "",
        "## Policies",
        "",
        *table(["policy", "status", "in llm-d", "rule"], _policy_cells(promotion)),
        "",
        "## Settings",
        "",
        "Settings of policies that are not in use are left out.",
        "",
        *table(
            ["setting", "value", "baseline", "status", "in llm-d", "rule or fallback"],
            _setting_cells(promotion, strategy, baseline),
        ),
    ]
    if order is not None:
        lines += ["", "## Order by class", "", _order_words(order), ""]
        cells = ((name, value, order.headers_ms[name]) for name, value in order.offsets_ms.items())
        lines += table(["class", "offset, ms", "x-llm-d-slo-ttft-ms"], cells)
    lines += ["", "## Notes", "", *(f"- {note}" for note in notes)]
    return "\n".join(lines) + "\n"


def _order_words(order: StaticOrder) -> str:
    exact = "exact" if order.is_exact else "approximate"
    return (
        f"Static key, {exact}: {order.note}. vLLM gets the request field `priority` = arrival in ms - offset, where "
        "lower is earlier; the target's router does not set the field, so a client or gateway does. The router's own "
        "queue orders by the header `x-llm-d-slo-ttft-ms`, inside one priority band."
    )


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
    chosen = getattr(config, registry.SETTINGS[one.kind])
    used = [chosen] if one.kind != "scorer" else [scorer for scorer, _ in config.scorers()]
    return any(policy in used for policy in one.policies)


def _status(promotion: Promotion, config: ClusterConfig, name: str) -> tuple[str, str]:
    """The row's status, or that of the very value."""
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


def summary(promotion: Promotion) -> Mapping[str, int]:
    """How many settings in effect have each status."""
    counts = {"exact": 0, "approximate": 0, "code": 0, "none": 0}
    for cells in _setting_cells(promotion, promotion.arm.config, promotion.baseline.config):
        counts[cells[3]] += 1
    return counts
