"""`blis-jax traces FILE`: what a trace holds, and the same trace in another format."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from blis_jax import progress
from blis_jax.commands import cli, values
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import CommandOptions, OverwriteSwitch, option, trace_flags, word
from blis_jax.commands.options.trace_flags import GivenTrace
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.files.atomic_write import refuse_existing
from blis_jax.lazy import Module
from blis_jax.traces.rows import to_table

if TYPE_CHECKING:
    from blis_jax.traces import write
    from blis_jax.traces.read import Trace
    from blis_jax.workload.table import RequestTable
else:
    write = Module("blis_jax.traces.write")

NAME = "blis_jax.traces"
_DESCRIPTION = """\
Read a recorded trace, say what it holds, and write it in another format if asked for.
"""
_EXAMPLES = """\
examples:
  what is in a trace:
    %(prog)s trace.jsonl

  its first 1,000 requests as our own CSV, with prefixes of eight groups:
    %(prog)s trace.csv --limit 1000 --prefix-model groups:8:512 --output plain.csv

exit codes: 0 done; 2 input that cannot be used, nothing was written.
"""


class _Output(CommandOptions, title="output"):
    """Options for the output, and for what is counted."""

    seed: int = option(values.whole, trace_flags.DEFAULT_SEED, "N", "seed of whatever is drawn")
    output: str | None = option(str, None, "FILE", "file for the trace in another format")
    output_format: str = option(
        values.OneOf(*sorted(set(trace_flags.FORMAT_NAMES) - {"servegen", "benchmark"})), "plain", "NAME",
        "its format; FILE ends in .csv, for mooncake in .jsonl, for plain Parquet in .parquet",
    )  # fmt: skip
    block_size_in_tokens: int = option(
        values.whole,
        16,
        "N",
        "tokens of a KV block, to count what prompts share",
        also="block-size",
    )


class TracesOptions(
    GivenTrace, _Output, OverwriteSwitch,
    command=NAME, usage="%(prog)s FILE [options]", description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    trace: str | None = word("FILE", "the trace, or a benchmark's result; a folder for ServeGen")


SHORT_S, LONG_S = 600.0, 6 * 3600.0  # spans without a busiest minute, and with a busiest hour


@TracesOptions.as_main
def main(options: TracesOptions) -> int:
    """Run the command; return its exit code."""
    if options.trace is None:
        raise ConfigError("the following arguments are required: FILE")
    if options.output is not None:
        path = Path(options.output)
        check_ending(path, options.output_format)
        cli.check_writable(path)
        refuse_existing({"--output": path}, options.overwrite)
    trace = trace_flags.read(options, Notes(NAME), options.seed)
    if options.output is not None:
        with cli.writing(Path(options.output)), progress.phase(f"writing {options.output}"):
            write.write_trace(trace.rows, options.output, options.output_format)
    with progress.phase("counting what prompts share"):
        figures = summary(trace, options.block_size_in_tokens)
    for name, value in figures.items():
        print(f"{name + ':':<22} {value}")
    return 0


def check_ending(path: Path, name: str) -> None:
    """Refuse a name that says another format than the file will have."""
    endings = {"plain": (".csv", ".parquet"), "mooncake": (".jsonl",)}.get(name, (".csv",))
    if path.suffix not in endings:
        raise ConfigError(
            f"--output {path} must end in {' or '.join(endings)} for --output-format {name}"
        )


def summary(trace: Trace, block_size: int = 16) -> Mapping[str, str]:
    """Return the figures of a trace in words, by name."""
    rows = trace.rows
    table, _ = to_table(rows, block_size)
    span_s = (int(rows.arrival_us[-1]) - int(rows.arrival_us[0])) / 1e6
    classes = np.bincount(rows.slo_class, minlength=len(SLO_CLASSES))
    used = [name for name in trace.report.read if name not in trace.report.unread]
    words = {
        "format": trace.format,
        **({"columns read": ", ".join(used)} if used else {}),
        **({"columns ignored": ", ".join(trace.report.unread)} if trace.report.unread else {}),
        "requests": f"{len(rows):,}",
        "malformed rows": f"{trace.report.num_bad:,}",
        "span": f"{span_s:,.3f} s",
        "rate": f"{(len(rows) - 1) / span_s:,.3f} requests/s" if span_s else "all at once",
        **_busiest(rows.arrival_us / 1e6),
        "prompt tokens": _spread(rows.input_len),
        "output tokens": _spread(rows.output_len),
        "classes": ", ".join(
            f"{name or 'none'} {count:,}"
            for name, count in zip(SLO_CLASSES, classes, strict=True)
            if count
        ),
        "tenants": f"{np.unique(rows.tenant).size:,}",
        "clients": f"{np.unique(rows.client).size:,}",
        "sessions": f"{np.unique(rows.session[rows.session >= 0]).size:,}",
        "seen before": f"{_seen_before(table, block_size):.1%} of prompt blocks at most",
        "shared contents": f"{int((table.node_blocks > 0).sum()):,} nodes, paths of up to "
        f"{int((table.path_nodes >= 0).sum(axis=1).max())}",
    }
    return words


def _busiest(arrival_s: np.ndarray) -> dict[str, str]:
    """Return the rate of the busiest minute, of a trace of many hours the busiest hour; nothing for a short trace."""
    span_s = float(np.ptp(arrival_s))
    if span_s < SHORT_S:
        return {}
    name, length_s = ("minute", 60.0) if span_s < LONG_S else ("hour", 3600.0)
    counts = np.searchsorted(arrival_s, arrival_s + length_s) - np.arange(len(arrival_s))
    begin = int(np.argmax(counts))
    after_s = float(arrival_s[begin] - arrival_s[0])
    return {
        f"busiest {name}": f"{counts[begin] / length_s:,.3f} requests/s, from second {after_s:,.0f} on"
    }


def _spread(tokens: np.ndarray) -> str:
    low, median, high = (int(value) for value in np.percentile(tokens, [0, 50, 100]))
    total = int(tokens.sum(dtype=np.int64))
    return f"{total:,}; mean {tokens.mean():,.1f}, {low:,} to {high:,}, median {median:,}"


def _seen_before(table: RequestTable, block_size: int) -> float:
    """Return the share of full prompt blocks that an earlier prompt had, for a cache that keeps everything."""
    in_prompt = table.node_start[table.path_nodes] < (table.input_len // block_size)[:, None]
    held = table.path_nodes[(table.path_nodes >= 0) & in_prompt]
    holders = np.bincount(held, minlength=len(table.node_blocks))
    repeated = np.maximum(holders - 1, 0) * table.node_blocks.astype(np.int64)
    return float(repeated.sum() / max(int((table.input_len // block_size).sum(dtype=np.int64)), 1))


if __name__ == "__main__":
    sys.exit(main())
