"""Options that mean the same in every command: one name, one default, other spellings beside it.

`Parser` takes the other spellings from here, older ones and those of vLLM; `docs/options.md` is made from here and
from the commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from blis_jax.policies.their_names import names_of

HIDDEN = ""  # the help of an option that is understood, but not shown
VARIES = object()  # the default of an option that each command has its own for


class Shared(NamedTuple):
    """An option with one meaning; `default` is what a command has that declares any."""

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
BY_NAME = {one.name: one for one in SHARED}


def spellings(name: str) -> tuple[str, ...]:
    """Return an option's name and its other spellings; a name may bring others after a slash."""
    first, *others = name.split("/")
    of_vllm = [word.replace("_", "-") for word in names_of(first.replace("-", "_"))]
    also = (*(BY_NAME[first].also if first in BY_NAME else ()), *of_vllm)
    return (first, *others, *(word for word in also if word not in others))
