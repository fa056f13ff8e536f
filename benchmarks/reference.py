"""The tables of file formats, of settings, of metrics and of what compiles to Go, made from where they are declared.

python -m benchmarks.reference           the tables in Markdown on stdout
python -m benchmarks.reference --write   the same, and into docs/reference/ between their markers
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import sweeps.claims.grammar  # noqa: F401  (registers the metrics of searches)
from blis_jax.cluster.adapters import AdapterSettings
from blis_jax.cluster.config import FIELDS, ClusterConfig, PolicySettings
from blis_jax.cluster.machines import Machines, MemorySettings, PoolSettings
from blis_jax.cluster.offload_tiers import OffloadSettings
from blis_jax.cluster.router import BatchSettings, FlowSettings, RouterSettings
from blis_jax.cluster.settings import declared_in
from blis_jax.cluster.speculation import SpeculativeSettings
from blis_jax.files import formats
from blis_jax.latency.registry import MODELS
from blis_jax.metrics.scalars import lookup, metric_names
from blis_jax.policies import registry
from blis_jax.policies.their_names import first_name, names_of
from blis_jax.reports.render import table_lines, table_text
from blis_jax.reports.words import unit_text
from papers.pages import ROOT, hand_over, table_parser
from sweeps.promote.golang import plugins

FOLDER = ROOT / "docs" / "reference"


def settings_table() -> str:
    """Write for each part of `ClusterConfig` one row for each setting that is no number of a policy."""
    parts = {
        "Machines": Machines,
        "Pools of blis-2026-08": PoolSettings,
        "KV memory": MemorySettings,
        "Off-load tiers of blis-2026-08": OffloadSettings,
        "LoRA adapters of blis-2026-08": AdapterSettings,
        "Router": RouterSettings,
        "The gateway's queue": FlowSettings,
        "Queue and batch of an instance": BatchSettings,
        "Drafted tokens (speculative decoding)": SpeculativeSettings,
        "Policies": PolicySettings,
        "The run": ClusterConfig,
    }
    lines: list[str] = []
    for title, part in parts.items():
        declared = [name for name in declared_in(part) if name not in registry.settings()]
        head = ("setting", "meaning", "unit", "default", "allowed")
        lines += [f"## {title}", "", *table_lines(head, map(_row, declared)), ""]
    return "\n".join(lines[:-1])


def _row(name: str) -> tuple[str, ...]:
    field = FIELDS[name]
    declared = field.metadata["setting"]
    kinds = {"bool": "true or false", "str": "any text"}
    allowed = declared.words or ", ".join(declared.choices) or kinds.get(str(field.type), "")
    if name == "latency_model":
        allowed = f"auto, {', '.join(MODELS)}, or `path/to/file.py:Name`"
    return (
        f"`{first_name(name)}`",
        declared.meaning + _other_names(name),
        declared.unit,
        _default(name, field.default),
        allowed or declared.allowed,
    )


def _other_names(name: str) -> str:
    """Say which names of vLLM and BLIS are understood beside the one that the table leads with."""
    others = [other for other in (name, *names_of(name)) if other != first_name(name)]
    if not others:
        return ""
    return f"; also {', '.join(f'`{other}`' for other in others)}" + " (BLIS)" * (name in others)


def _default(name: str, value: object) -> str:
    if name == "horizon":
        return "2^63 − 1"
    if isinstance(value, tuple):
        return ", ".join(f"{number:.6g}" for number in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def metrics_table() -> str:
    """Write the reference table of metrics, one row for each name."""
    metrics = [(name, lookup(name)[0]) for name in metric_names()]
    return table_text(
        ("metric", "what it is", "unit", "better", "by class"),
        (
            (
                f"`{name}`", metric.estimand, unit_text(metric.unit, "{}"), metric.direction,
                "yes" if metric.has_classes else "no",
            )
            for name, metric in metrics
        ),
    )  # fmt: skip


def promoted_go() -> str:
    """Write primitives and policies that compile to Go, and an example."""
    return plugins.page()


TABLES = {
    "formats": formats.table,
    "settings": settings_table,
    "metrics": metrics_table,
    "promoted-go": promoted_go,
}


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = table_parser("benchmarks.reference", __doc__, "docs/reference/")
    arguments = parser.parse_args(words)
    for name, table in TABLES.items():
        hand_over(table(), FOLDER / f"{name}.md" if arguments.write else None, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
