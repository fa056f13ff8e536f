"""The help of every command: usual options under --help, all under --help-all; and the options that commands share."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from blis_jax.errors import as_option
from blis_jax.policies.their_names import first_name, names_of

# Options that --help leaves out in every command that has them; the settings of clusters that it shows are below.
SELDOM = frozenset((
    # what is drawn, and which part of a trace
    "workload-traces-filepath", "requests", "timeout", "lazy-generation", "concurrency", "think-time-ms",
    "prefix-tokens", "prompt-tokens-stdev", "prompt-tokens-min", "prompt-tokens-max", "output-tokens-stdev",
    "output-tokens-min", "output-tokens-max", "first-seed", "trace-header", "trace-block-size", "trace-stage",
    "time-unit", "from", "until", "limit", "prefix-model", "strict", "think-time-dist", "session-mode",
    # how much is computed, and how
    "slots", "clock", "variant", "random-state", "block-s", "bootstrap", "draws", "most-seeds", "depth", "design",
    "reference", "every-seed", "levels", "bases", "pairs", "trajectories", "gradients", "initial", "rungs", "starts",
    "explore", "inert", "device", "workloads-dir", "json", "signal-age", "lora-adapter-capacity", "adapter-zipf",
    # what BLIS prints beside the figures, and what is written beside the results
    "slo-ttft", "slo-itl", "slo-e2e", "fitness-weights", "detectors", "saturation-config", "saturation-report",
    "saturation-final-window", "trace-level", "counterfactual-k", "summarize-trace", "kv-timeline", "trace-output",
    "log", "rng", "horizon", "map-axes", "map-facets", "differences", "no-cache", "window", "part",
))  # fmt: skip
USUAL_SETTINGS = frozenset((
    "model", "hardware", "tp", "num-instances", "instances", "coefficients-from", "total-kv-blocks",
    "enable-prefix-caching", "admission-policy", "routing-policy", "routing-scorers", "scheduler", "priority-policy",
    "max-num-scheduled-tokens", "max-num-running-reqs", "long-prefill-token-threshold",
))  # fmt: skip
FULL = "--help-all"


def written(parser: argparse.ArgumentParser, seldom: Collection[str] = ()) -> str:
    """Return a command's help without the options `seldom`; its last line says how many are left out."""
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage or _usage(parser), [], [])
    formatter.add_text(parser.description)
    for group in parser._action_groups:
        formatter.start_section(group.title)
        formatter.add_text(group.description)
        formatter.add_arguments(
            [
                action
                for action in group._group_actions
                if is_shown(action) and not {*action.option_strings} & {*seldom}
            ]
        )
        formatter.end_section()
    formatter.add_text(parser.epilog)
    text = formatter.format_help()
    return f"{text}\n{FULL} shows {len(seldom)} further options.\n" if seldom else text


def first_spelling(option: argparse.Action) -> str:
    """Return the spelling that help shows: vLLM's, where vLLM has the option."""
    theirs = as_option(first_name(option.dest))
    return theirs if theirs in option.option_strings else option.option_strings[0]


def is_shown(option: argparse.Action) -> bool:
    """Return whether help lists an option: every option except those that print help."""
    return option.dest != "help"


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return the usage line for a command that declares none: its name and positional arguments."""
    words = [str(action.metavar) for action in parser._get_positional_actions()]
    many = {action.metavar for action in parser._get_positional_actions() if action.nargs == "*"}
    return " ".join(
        ["%(prog)s", *(f"{word} ..." if word in many else word for word in words), "[options]"]
    )


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Shows only an option's first spelling, unbroken; docs/options.md lists the other spellings."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=100)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if len(action.option_strings) < 2 or action.option_strings[0] == "-h":
            return super()._format_action_invocation(action)
        first = first_spelling(action)
        if action.nargs == 0:
            return first
        return f"{first} {self._format_args(action, str(action.metavar))}"


def text_of(text: str, default: object) -> str:
    """Return an option's help with its default; an option without a text is not shown."""
    if text == HIDDEN:
        return argparse.SUPPRESS
    text = text.replace("%", "%%")
    return text if default in (None, "", ()) else f"{text} (default: {shown(default)})"


def shown(value: object) -> str:
    """Write a default as help and tables show it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


HIDDEN = ""  # the help of an option that is understood, but not shown
VARIES = object()  # the default of an option that each command has its own for


class Shared(NamedTuple):
    """An option with the same meaning in every command; `default` holds unless `elsewhere` has the command."""

    name: str
    meaning: str
    default: object = VARIES
    also: tuple[str, ...] = ()
    elsewhere: Mapping[str, tuple[Any, str]] = {}  # by command: another default, and why


SHARED = (
    Shared("seeds", "how many seeds, from `--first-seed` on; or a list `A,B,…` of seeds (`A,` for one)",
           also=("num-seeds", "vmap-seeds")),
    Shared("first-seed", "the first seed, which the others follow: 42, as in BLIS, or 0 where JAX draws", None),
    Shared("rng", "who draws the requests: `reference` draws those of BLIS, `jax` others of the same laws, in the "
           "compiled program",
           "reference",
           elsewhere={"sweep": ("jax", "hundreds of seeds are drawn in the compiled program"),
                      "dataset": ("jax", "hundreds of seeds are drawn in the compiled program"),
                      "papers strategy_evolution": ("jax", "hundreds of seeds are drawn in the compiled program"),
                      "papers routing_evolution": ("jax", "hundreds of seeds are drawn in the compiled program")}),
    Shared("random-state", "seed of everything that is random besides the requests: search, resampling, starts", 0),
    Shared("workload", "built-in workload or a .yaml file", also=("workload-spec",)),
    Shared("num-requests", "requests in place of the workload's number", also=("requests", "num-prompts")),
    Shared("trace", "recorded trace in place of a workload", None),
    Shared("rate", "requests per second in place of the workload's", also=("request-rate",)),
    Shared("instances", "YAML or JSON list of groups of instances"),
    Shared("targets", "SLO targets `CLASS.LIMIT=MS`, with commas between them or repeated", None),
    Shared("window", "seconds of arrivals at the start and at the end that are not measured", None),
    Shared("metrics", "metrics with commas between them, [class] behind"),
    Shared("precision", "add seeds until differences are known to ±P % of the reference", None),
    Shared("decide", "add seeds until the verdicts are safe"),
    Shared("deciding", "metrics that `--precision` and `--decide` look at", None),
    Shared("most-seeds", "the most seeds that are taken", None,
           elsewhere={"select": (2000, "a choice among near equals takes more seeds than a comparison")}),
    Shared("confidence", "probability of intervals and verdicts", 0.95,
           elsewhere=dict.fromkeys(
               ("surrogate predict", "surrogate coverage"),
               (0.9, "a surrogate's calibration points are too few for the far tails"))),
    Shared("bootstrap", "resamples", 9999,
           elsewhere={"sensitivity": (1000, "each resample computes all indices again")}),
    Shared("output", "file or folder to write", also=("out", "results-path")),
    Shared("figure", "PNG to write, or none; beside the result if not given", None),
    Shared("report", "page to write, .html", None),
    Shared("timeline", "Perfetto trace of one run to write", None),
    Shared("resume", "continue from what the output already has"),
    Shared("part", "make the I-th of N parts of the runs, which `merge` joins", None),
    Shared("overwrite", "replace an existing output, make everything again", also=("force", "fresh")),
    Shared("no-figures", "draw no figures"),
    Shared("all", "print every row and note below the answer"),
    Shared("explain", "print how figures, intervals and verdicts are made, below the answer"),
    Shared("quiet", "print nothing but errors"),
    Shared("no-cache", "compile again instead of using programs kept from earlier runs"),
)  # fmt: skip
BY_NAME = {option.name: option for option in SHARED}


def spellings(name: str) -> tuple[str, ...]:
    """Return an option's name and its other spellings; those in `name` itself are separated by slashes."""
    first, *others = name.split("/")
    of_vllm = [word.replace("_", "-") for word in names_of(first.replace("-", "_"))]
    also = (*(BY_NAME[first].also if first in BY_NAME else ()), *of_vllm)
    return (first, *others, *(word for word in also if word not in others))
