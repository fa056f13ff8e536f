"""`python -m blis_jax.commands.convert`: BLIS's command `convert`, other descriptions as workload files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.compose import written
from blis_jax.errors import ConfigError, UnsupportedError, closest
from blis_jax.files import input_files
from blis_jax.files.strict_yaml import read_mapping
from blis_jax.workload.inference_perf import revised_clients
from blis_jax.workload.lengths.distribution import PRESETS, Distribution, GaussianLengths, preset
from blis_jax.workload.spec import load_spec
from blis_jax.workload.versions import REVISED

NAME = "blis_jax.commands.convert"
_DESCRIPTION = """\
Write a preset of BLIS, or a workload in the form of inference-perf, as a workload file of August 2026, on stdout.
"""
_EXAMPLES = """\
examples:
  a preset at 5 requests/s:
    %(prog)s preset --name chatbot --rate 5 > chatbot.yaml

  the clients of an inference-perf workload:
    %(prog)s inference-perf --spec shared-prefix.yaml > clients.yaml
"""
_OPTIONS = {  # by what is converted
    "preset": ("name", "rate", "num_requests", "defaults_filepath"),
    "inference-perf": ("spec",),
    "servegen": ("path", "window_duration_seconds", "drain_timeout_seconds", "time"),
}
_FLAGS = (
    Flag("name", str, None, "NAME", f"preset: one of {', '.join(PRESETS)}"),
    Flag("rate", cli.number, 1.0, "RPS", "preset: requests per second"),
    Flag("num-requests", cli.at_least(1), 100, "N", "preset: requests"),
    Flag("defaults-filepath", str, None, "FILE", "preset: BLIS's defaults file, for presets of its own"),
    Flag("spec", str, None, "FILE", "inference-perf: the workload file"),
    *(
        Flag(name, str, None, "X", "servegen, which ends with exit code 3")
        for name in ("path", "window-duration-seconds", "drain-timeout-seconds", "time")
    ),
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s preset --name NAME [options]\n       %(prog)s inference-perf --spec FILE",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
    )
    kinds = cli.one_of(*_OPTIONS)
    parser.add_argument(
        "kind", type=kinds, metavar="KIND", nargs="?", default=None, help=", ".join(_OPTIONS)
    )
    parser.add_flags("what to convert", _FLAGS)
    given = parser.given(sys.argv[1:] if arguments is None else arguments)
    kind = given.pop("kind", None)
    if kind is None:
        raise ConfigError(f"say what to convert; use one of {', '.join(_OPTIONS)}")
    for name in given:
        if name not in _OPTIONS[kind]:
            raise ConfigError(
                f"--{name.replace('_', '-')} is no option of convert {kind}; leave it out"
            )
    print(written(_CONVERTED[kind](given), f"convert {kind}"), end="")
    return 0


def _of_preset(given: Mapping[str, Any]) -> dict[str, Any]:
    if "name" not in given:
        raise ConfigError("--name is missing; give the preset")
    from blis_jax.workload.reference.distribution import as_spec  # which needs JAX

    name, rate, number = given["name"], given.get("rate", 1.0), given.get("num_requests", 100)
    made = _of_defaults(given, rate, number)
    document = as_spec(made).model_dump(mode="json", exclude_unset=True)
    document["clients"][0]["id"] = f"preset-{name}"
    return document


def _of_defaults(given: Mapping[str, Any], rate: float, number: int) -> Distribution:
    """The preset, of the package or of a defaults file."""
    name, path = given["name"], given.get("defaults_filepath")
    if path is None or not (Path(path).is_file() or path != "defaults.yaml"):
        if name not in PRESETS:
            raise ConfigError(
                f"--name: preset {name!r} is unknown; use one of {', '.join(PRESETS)}{closest(name, list(PRESETS))}"
            )
        return preset(name, rate, number)
    text = input_files.read_text(Path(path), "BLIS's defaults file")
    presets = read_mapping(text, path).get("workloads") or {}
    if name not in presets:
        raise ConfigError(f"--name: {path} has no preset {name!r}; it has {', '.join(presets)}")
    numbers = presets[name]

    def lengths(kind: str) -> GaussianLengths:
        ends = ("", "_stdev", "_min", "_max")
        return GaussianLengths(*(numbers.get(f"{kind}_tokens{end}", 0) for end in ends))

    prefix = numbers.get("prefix_tokens", 0)
    return Distribution(rate, number, prefix, lengths("prompt"), lengths("output"))


def _of_inference_perf(given: Mapping[str, Any]) -> dict[str, Any]:
    if "spec" not in given:
        raise ConfigError("--spec is missing; give the workload file")
    spec = load_spec(given["spec"], REVISED)
    if spec.inference_perf is None:
        raise ConfigError(f"{given['spec']}: has no inference_perf; give a file that has")
    rate, clients = revised_clients(spec.inference_perf)
    return {
        "seed": spec.seed,
        "category": "reasoning" if spec.inference_perf.is_chat else "language",
        "clients": [client.document for client in clients],
        "aggregate_rate": rate,
    }


def _of_servegen(given: Mapping[str, Any]) -> dict[str, Any]:
    raise UnsupportedError(
        "convert servegen is not supported: no cohorts are made of a ServeGen folder; run --trace simulates one"
    )


_CONVERTED: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "preset": _of_preset,
    "inference-perf": _of_inference_perf,
    "servegen": _of_servegen,
}

if __name__ == "__main__":
    sys.exit(main())
