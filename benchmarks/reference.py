"""The tables of settings, of metrics and of what compiles to Go, made from where they are declared.

python -m benchmarks.reference           the tables in Markdown on stdout
python -m benchmarks.reference --write   the same, and into docs/reference/ between their markers
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from benchmarks.pages import ROOT, hand_over

FOLDER = ROOT / "docs" / "reference"
# Settings without an option of their own, or with another meaning in a file than on a command line.
MEANINGS = {
    "model": "model to serve; the commands take its coefficients and blocks from the published fits, "
    "trained-physics and roofline its sizes from its description",
    "hardware": "GPU type",
    "tp": "GPUs per instance (tensor parallelism)",
    "total_kv_blocks": "KV blocks of one instance",
    "horizon": "time at which the simulation stops; the default means never",
    "revision": "revision of BLIS that is reproduced: blis-2026-02 or blis-2026-08",
    "variant": "track of BLIS that is reproduced: scheduling or routing",
    "corrected": "run without the defects of BLIS",
    "instances": "groups of instances with numbers of their own",
    "node_pools": "machines of blis-2026-08, read from a policy file",
}
UNITS = {
    "alpha_coeffs": "µs, µs/token, µs/token",
    "beta_coeffs": "µs, µs/token, µs/token",
    "total_kv_blocks": "blocks",
    "block_size_in_tokens": "tokens",
    "max_num_running_reqs": "requests",
    "max_num_scheduled_tokens": "tokens",
    "long_prefill_token_threshold": "tokens",
    "num_instances": "instances",
    "admission_latency": "µs",
    "routing_latency": "µs",
    "slo_prefill_critical": "tokens",
    "slo_prefill_sheddable": "tokens",
    "snapshot_refresh_interval": "µs",
    "load_refresh_interval": "µs",
    "prefix_index_delay": "µs",
    "prefix_index_loss": "share",
    "network_delay": "µs",
    "num_gateways": "gateways",
    "cache_signal_delay": "µs",
    "max_model_len": "tokens",
    **dict.fromkeys(
        (
            "prefill_instances",
            "decode_instances",
            "prefill_decode_instances",
            "encode_instances",
        ),
        "instances",
    ),
    "pd_prefix_threshold": "tokens",
    "pd_transfer_bandwidth": "GB/s",
    "pd_transfer_base_latency": "ms",
    "prefill_tp": "GPUs",
    "decode_tp": "GPUs",
    "prefill_max_model_len": "tokens",
    "decode_max_model_len": "tokens",
    "queue_depth_threshold": "requests",
    "kv_cache_util_threshold": "share",
    "max_concurrency": "requests",
    "usage_limit_threshold": "share",
    "slo_targets": "µs",
    "max_gateway_queue_depth": "requests",
    "per_band_capacity": "requests",
    "request_ttl": "µs",
    "dispatch_tick_interval": "µs",
    "kv_cpu_blocks": "blocks",
    "kv_offload_threshold": "share",
    "kv_transfer_bandwidth": "tokens/µs",
    "kv_transfer_base_latency": "µs",
    "horizon": "µs",
    "tp": "GPUs",
    "dp": "groups of GPUs",
    "gpu_memory_utilization": "share",
}


def settings_table() -> str:
    """One row for each field of `ClusterConfig` that is no number of a policy."""
    from blis_jax.cluster.config import FIELDS
    from blis_jax.commands.flags.cluster_flags import CLUSTER_FLAGS, name_of
    from blis_jax.policies import registry

    flags = {name_of(flag): flag.help for flag in CLUSTER_FLAGS}
    lines = ["| setting | meaning | unit | default | allowed |", "|---|---|---|---|---|"]
    for name, field in FIELDS.items():
        if name not in registry.settings():
            meaning = MEANINGS.get(name) or flags[name]
            cells = (meaning, UNITS.get(name, ""), _default(name, field.default), _allowed(name))
            lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _default(name: str, value: object) -> str:
    if name == "horizon":
        return "2^63 − 1"
    if isinstance(value, tuple):
        return ", ".join(f"{one:.6g}" for one in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def _allowed(name: str) -> str:
    from blis_jax.cluster import config, ranges
    from blis_jax.cluster.disaggregation import DECIDERS, ENCODE_DECIDERS
    from blis_jax.cluster.flow_settings import CHOICES
    from blis_jax.latency.deployment import ALL_GATHER, ALL_TO_ALL
    from blis_jax.latency.registry import MODELS
    from blis_jax.policies import registry

    if config.POLICY_NAMES.get(name) == (registry.NONE,):
        return "none, or `path/to/file.py:Name`, see [Move requests](../how-to/movement.md)"
    if name == "prefill_routing_scorers":
        name = "routing_scorers"
    if name in config.POLICY_NAMES or name == "routing_scorers":
        return "a name of [Policies](policies.md), or `path/to/file.py:Name`" + (
            ", each with `:weight` above 0" if name == "routing_scorers" else ""
        )
    if name == "latency_model":
        return f"auto, {', '.join(MODELS)}, or `path/to/file.py:Name`"
    words = {
        "num_instances": f"1 to {ranges.MAX_INSTANCES:,}",
        "variant": " or ".join(config.VARIANTS),
        "preemption_mode": " or ".join(config.PREEMPTION_MODES),
        "snapshot_phases": f"{', '.join(config.PHASES[:-1])} or {config.PHASES[-1]}",
        "kv_transfer_bandwidth": "above 0",
        "pd_transfer_bandwidth": "above 0",
        "pd_transfer_base_latency": "at least 0",
        "pd_decider": ", ".join(DECIDERS),
        "encode_decider": ", ".join(ENCODE_DECIDERS),
        "usage_limit_threshold": "above 0, at most 1",
        "tenant_budgets": "`TENANT=SHARE` pairs with shares from 0 to 1",
        "slo_targets": "`CLASS=N` pairs with whole µs above 0",
        "policy_numbers": "numbers that the policies in use declare",
        "instances": "see [Mix instances](../how-to/instances.md)",
        "node_pools": "see [BLIS's autoscaler](../how-to/elastic.md#bliss-autoscaler)",
        "alpha_coeffs": "three finite numbers",
        "beta_coeffs": "as many as the latency model has",
        "model_config": "path of a file, or of its folder",
        "moe_comm_backend": f"{', '.join((*ALL_GATHER[1:], *ALL_TO_ALL))}, or none",
        "gpu_memory_utilization": "above 0, at most 1",
    }
    words |= {name: ", ".join(names) for name, names in CHOICES.items()}
    if name in words:
        return words[name]
    for names, text in (
        (ranges.POSITIVE, "above 0"),
        (ranges.NOT_NEGATIVE, "at least 0"),
        (ranges.SHARES, "0 to 1"),
    ):
        if name in names:
            return text
    return {"bool": "true or false", "str": "any text", "int": "a whole number"}[
        str(config.FIELDS[name].type)
    ]


def metrics_table() -> str:
    """One row for each metric that a name can mean."""
    import sweeps.runs.metrics  # registers its own
    from blis_jax.metrics.scalars import lookup, metric_names

    del sweeps
    lines = ["| metric | unit | better | by class |", "|---|---|---|---|"]
    for name in metric_names():
        metric, _ = lookup(name)
        unit = "" if metric.unit == "1" else metric.unit
        by_class = "yes" if metric.has_classes else "no"
        lines.append(f"| `{name}` | {unit} | {metric.direction} | {by_class} |")
    return "\n".join(lines)


def promoted_go() -> str:
    """Primitives and policies that compile to Go, and an example."""
    from sweeps.promote.golang.page import page

    return page()


TABLES = {"settings": settings_table, "metrics": metrics_table, "promoted-go": promoted_go}


def main(words: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.reference",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", action="store_true", help="also write docs/reference/")
    arguments = parser.parse_args(words)
    for name, table in TABLES.items():
        hand_over(table(), FOLDER / f"{name}.md" if arguments.write else None, name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
