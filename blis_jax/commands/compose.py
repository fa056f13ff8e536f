"""`blis-jax compose`: BLIS's command `compose`, several workload files as one."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.commands.options import CommandOptions, option
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files import input_files
from blis_jax.files.strict_yaml import read_mapping
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import TEXTS, parse_spec, upgraded
from blis_jax.workload.written import yaml_text

NAME = "blis_jax.commands.compose"
_DESCRIPTION = """\
Put the clients of several workload files (of BLIS of August 2026) into one file, on stdout. Their rates add up, and
each client keeps its own. Seed, horizon and number of requests are left out, and so are cohorts, as in BLIS.
"""
_EXAMPLES = """\
examples:
  two workloads as one:
    %(prog)s --from chat.yaml --from batch.yaml > both.yaml
"""


class ComposeOptions(
    CommandOptions, title="files", command=NAME, usage="%(prog)s --from FILE [--from FILE ...]",
    description=_DESCRIPTION, examples=_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    from_: tuple[str, ...] = option(
        str, (), "FILE", "a workload file; give several", is_repeated=True
    )


@ComposeOptions.as_main
def main(options: ComposeOptions) -> int:
    """Run the command; return its exit code."""
    paths = options.from_
    if not paths:
        raise ConfigError(
            "--from is missing; give a workload file, and one --from for each further"
        )
    print(written(composed([_read(path) for path in paths]), "the workload made of them"), end="")
    return 0


def _read(path: str) -> dict[str, Any]:
    """The mapping of a workload file, which need not be whole."""
    text = input_files.read_text(Path(path), "a workload file")
    document = upgraded(read_mapping(text, path, TEXTS), path)
    parse_spec(text, path, REVISED)
    for name in ("cohorts", "inference_perf", "servegen_data"):
        if document.get(name):
            warnings.warn(f"{path}: {name} is left out, as in BLIS", ConfigWarning, stacklevel=2)
    return document


def composed(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the clients of all workloads into the mapping of one file; a client's share of the rate is
    scaled by its file's rate.

    Raises:
        ConfigError: there are no clients, or the rates add up to no finite number.
    """
    rates = [float(document_.get("aggregate_rate") or 0.0) for document_ in documents]
    total = 0.0
    for rate in rates:
        total += rate
    if not math.isfinite(total):
        raise ConfigError("aggregate_rate: the rates of the files add up to no finite number")
    clients = []
    for document, rate in zip(documents, rates, strict=True):
        for client in document.get("clients") or ():
            share = float(client.get("rate_fraction") or 0.0)
            clients.append({**client, "rate_fraction": share * (rate / total) if total else share})
    if not clients:
        raise ConfigError(
            "the files have no clients, and nothing else is put together; give files with clients"
        )
    category = documents[0].get("category", "")
    return {"category": category, "clients": clients, "aggregate_rate": total}


def written(document: Mapping[str, Any], source: str) -> str:
    """Write a workload as YAML text, after reading it again as a check."""
    text = yaml_text(document)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        parse_spec(text, source, REVISED)
    return text


if __name__ == "__main__":
    sys.exit(main())
