"""`blis-jax convert` and `compose`, as in BLIS: convert other descriptions to workload files; merge several files."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.commands import values
from blis_jax.commands.august_files import preset_of
from blis_jax.commands.options import CommandOptions, option, word
from blis_jax.errors import ConfigError, ConfigWarning, as_option, closest
from blis_jax.files import input_files
from blis_jax.files.strict_yaml import read_mapping
from blis_jax.workload.distribution import PRESETS, Distribution, GaussianLengths, preset
from blis_jax.workload.inference_perf import revised_clients
from blis_jax.workload.reference.distribution import as_spec
from blis_jax.workload.servegen.cohorts import cohorts_of
from blis_jax.workload.source import REVISED
from blis_jax.workload.spec import TEXTS, load_spec, parse_spec, upgraded
from blis_jax.workload.written import yaml_text

NAME = "blis_jax.commands.workload_files"

# --- convert --------------------------------------------------------------------------------------

_CONVERT = """\
Write a preset of BLIS, a workload in the form of inference-perf, or the traffic of ServeGen data as a workload file of
August 2026, on stdout.
"""
_CONVERT_EXAMPLES = """\
examples:
  a preset at 5 requests/s:
    %(prog)s preset --name chatbot --rate 5 > chatbot.yaml

  the clients of an inference-perf workload:
    %(prog)s inference-perf --spec shared-prefix.yaml > clients.yaml

  half an hour after midnight of a folder of ServeGen data, as cohorts:
    %(prog)s servegen --path data/m-small --time midnight > night.yaml
"""
_OPTIONS = {  # by what is converted
    "preset": ("name", "rate", "num_requests", "defaults_filepath"),
    "inference-perf": ("spec",),
    "servegen": ("path", "window_duration_seconds", "drain_timeout_seconds", "time"),
}
SERVEGEN_SEED = 42  # of BLIS's conversion
PERIODS_OF_DAY = ("midnight", "morning", "afternoon")


class _Converted(CommandOptions, title="what to convert"):
    """Options for the conversion: its source, and what the source does not say."""

    name: str | None = option(str, None, "NAME", f"preset: one of {', '.join(PRESETS)}")
    rate: float | None = option(
        values.number, None, "RPS", "preset: requests per second", shown=1.0
    )
    num_requests: int | None = option(values.at_least(1), None, "N", "preset: requests", shown=100)
    defaults_filepath: str | None = option(
        str, None, "FILE", "preset: a defaults file of BLIS with further presets"
    )
    spec: str | None = option(str, None, "FILE", "inference-perf: the workload file")
    path: str | None = option(
        str, None, "FOLDER", "servegen: the folder of chunk-*-trace.csv and chunk-*-dataset.json"
    )
    window_duration_seconds: int | None = option(
        values.at_least(1), None, "S", "servegen: seconds that each period lasts", shown=600
    )
    drain_timeout_seconds: int | None = option(
        values.at_least(0),
        None,
        "S",
        "servegen: seconds without requests between periods",
        shown=180,
    )
    time: str | None = option(
        values.OneOf(*PERIODS_OF_DAY), None, "NAME", "servegen: one period; all three if not given"
    )


class ConvertOptions(
    _Converted, command=NAME, description=_CONVERT, examples=_CONVERT_EXAMPLES,
    usage="%(prog)s preset --name NAME [options]\n       %(prog)s inference-perf --spec FILE\n"
    "       %(prog)s servegen --path FOLDER [options]",
):  # fmt: skip
    """Options of the command."""

    kind: str | None = word("KIND", ", ".join(_OPTIONS), values.OneOf(*_OPTIONS))


@ConvertOptions.as_main
def convert(options: ConvertOptions) -> int:
    """Run the command; return its exit code."""
    kind = options.kind
    if kind is None:
        raise ConfigError(f"say what to convert; use one of {', '.join(_OPTIONS)}")
    for name in options.given():
        if name not in ("kind", *_OPTIONS[kind]):
            raise ConfigError(f"{as_option(name)} is no option of convert {kind}; leave it out")
    print(written(_CONVERTED[kind](options), f"convert {kind}"), end="")
    return 0


def _of_preset(options: ConvertOptions) -> dict[str, Any]:
    name, number = options.name, options.num_requests or 100
    if name is None:
        raise ConfigError("--name is missing; give the preset")
    rate = 1.0 if options.rate is None else options.rate
    made = _of_defaults(name, options.defaults_filepath, rate, number)
    document = as_spec(made).model_dump(mode="json", exclude_unset=True)
    document["clients"][0]["id"] = f"preset-{name}"
    return document


def _of_defaults(name: str, path: str | None, rate: float, number: int) -> Distribution:
    """Return the preset's distribution, from a defaults file or from the package."""
    if path == "defaults.yaml" and not Path(path).is_file():
        path = None  # the place where BLIS looks for one
    numbers = preset_of(path, name)
    if numbers is not None:
        prompt, output = (GaussianLengths.of(numbers, kind) for kind in ("prompt", "output"))
        return Distribution(rate, number, numbers["prefix_tokens"], prompt, output)
    if name not in PRESETS:
        raise ConfigError(
            f"--name: preset {name!r} is unknown; use one of {', '.join(PRESETS)}{closest(name, list(PRESETS))}"
        )
    return preset(name, rate, number)


def _of_inference_perf(options: ConvertOptions) -> dict[str, Any]:
    if options.spec is None:
        raise ConfigError("--spec is missing; give the workload file")
    spec = load_spec(options.spec, REVISED)
    if spec.inference_perf is None:
        raise ConfigError(f"{options.spec}: has no inference_perf; give a file that has")
    rate, clients = revised_clients(spec.inference_perf)
    return {
        "seed": spec.seed,
        "category": "reasoning" if spec.inference_perf.is_chat else "language",
        "clients": [client.document for client in clients],
        "aggregate_rate": rate,
    }


def _of_servegen(options: ConvertOptions) -> dict[str, Any]:
    if options.path is None:
        raise ConfigError("--path is missing; give the folder of ServeGen data")
    drain_s = options.drain_timeout_seconds
    document, notes = cohorts_of(
        Path(options.path),
        SERVEGEN_SEED,
        options.window_duration_seconds or 600,
        180 if drain_s is None else drain_s,
    )
    for note in notes:
        warnings.warn(note, ConfigWarning, stacklevel=2)
    period = options.time
    if period is None:
        return document
    if document["category"] == "reasoning":
        raise ConfigError("--time has no meaning for data of requests that reason; leave it out")
    kept = [cohort for cohort in document["cohorts"] if cohort["id"].startswith(f"{period}-")]
    if not kept:
        raise ConfigError(f"--time: no client sends requests at {period}; take another period")
    return document | {"cohorts": kept}


_CONVERTED: dict[str, Callable[[ConvertOptions], dict[str, Any]]] = {
    "preset": _of_preset,
    "inference-perf": _of_inference_perf,
    "servegen": _of_servegen,
}


# --- compose --------------------------------------------------------------------------------------

_COMPOSE = """\
Put the clients of several workload files (of BLIS of August 2026) into one file, on stdout. Their rates add up, and
each client keeps its own. Seed, horizon and number of requests are left out, and so are cohorts, as in BLIS.
"""
_COMPOSE_EXAMPLES = """\
examples:
  two workloads as one:
    %(prog)s --from chat.yaml --from batch.yaml > both.yaml
"""


class ComposeOptions(
    CommandOptions, title="files", command=NAME, usage="%(prog)s --from FILE [--from FILE ...]",
    description=_COMPOSE, examples=_COMPOSE_EXAMPLES,
):  # fmt: skip
    """Options of the command."""

    from_: tuple[str, ...] = option(
        str, (), "FILE", "a workload file; give several", is_repeated=True
    )


@ComposeOptions.as_main
def compose(options: ComposeOptions) -> int:
    """Run the command; return its exit code."""
    paths = options.from_
    if not paths:
        raise ConfigError("--from is missing; give --from FILE once for each workload file")
    print(
        written(composed([_read_workload(path) for path in paths]), "the workload made of them"),
        end="",
    )
    return 0


def _read_workload(path: str) -> dict[str, Any]:
    """Return the mapping of a workload file, checked; warn of sections that are left out."""
    text = input_files.read_text(Path(path), "a workload file")
    document = upgraded(read_mapping(text, path, TEXTS), path)
    parse_spec(text, path, REVISED)
    for name in ("cohorts", "inference_perf", "servegen_data"):
        if document.get(name):
            warnings.warn(f"{path}: {name} is left out, as in BLIS", ConfigWarning, stacklevel=2)
    return document


def composed(documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the clients of all workloads into one file's mapping; scale each client's rate share by its file's rate.

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
    """Return a workload as YAML text, after parsing that text as a check."""
    text = yaml_text(document)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        parse_spec(text, source, REVISED)
    return text
