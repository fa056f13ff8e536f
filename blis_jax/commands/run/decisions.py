"""Options of decision traces: what admission and the router decided, and what a better choice would have saved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Notes
from blis_jax.errors import UnsupportedError

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.policies.contract import Policies

FLAGS = (
    Flag(
        "trace-level",
        cli.one_of("none", "decisions"),
        "none",
        "LEVEL",
        "whether --summarize-trace prints the decisions",
    ),
    Flag(
        "counterfactual-k",
        cli.at_least(0),
        0,
        "N",
        "above 0: print also by how much a better instance was missed; all instances count, as in BLIS",
    ),
    Flag(
        "summarize-trace",
        cli.truth,
        False,
        "BOOL",
        "with --trace-level decisions, print what admission and the router decided",
    ),
)
_BY_LOAD = ("round-robin", "always-busiest")  # they miss better instances, as BLIS scores them
_BEST = ("least-loaded", "weighted")  # they never do, with a picker that takes the best
_OF_BEST = ("first-best", "drawn-best", "random-best")


def is_shown(given: Mapping[str, Any]) -> bool:
    """Whether the decisions are printed."""
    return given.get("summarize_trace", False) and given.get("trace_level") == "decisions"


def _wants_regret(given: Mapping[str, Any]) -> bool:
    return is_shown(given) and given.get("counterfactual_k", 0) > 0


def check(given: Mapping[str, Any], config: ClusterConfig, notes: Notes) -> None:
    """Say which options have no effect.

    Raises:
        UnsupportedError: the routing policy has no scores of BLIS's to compare by.
    """
    has_level = given.get("trace_level") == "decisions"
    if given.get("counterfactual_k", 0) and not is_shown(given):
        notes.warn("--counterfactual-k has no effect without --trace-level and --summarize-trace")
    if given.get("summarize_trace") and not has_level:
        notes.warn("--summarize-trace has no effect without --trace-level decisions")
    if has_level and not given.get("summarize_trace"):
        notes.warn("--trace-level has no effect without --summarize-trace")
    is_known = config.routing_policy in (*_BY_LOAD, *_BEST)
    is_best = config.routing_policy != "weighted" or config.routing_picker in _OF_BEST
    if _wants_regret(given) and not (is_known and is_best):
        what = config.routing_picker if is_known else config.routing_policy
        raise UnsupportedError(
            f"--counterfactual-k is not supported with {what}: only {', '.join((*_BY_LOAD, *_BEST))} have "
            "BLIS's scores; leave it out, or take one of them"
        )


def router_watched(given: Mapping[str, Any], config: ClusterConfig) -> Policies | None:
    """The router that also keeps what its choices have cost, where that is asked for and can be above 0."""
    if not _wants_regret(given) or config.routing_policy not in _BY_LOAD:
        return None
    from blis_jax.policies.contract import Policies
    from blis_jax.policies.named import numbered
    from blis_jax.policies.routing.by_load import watched

    used = numbered(config)
    if used.decode is not None:  # its scorers choose for all requests that are not split
        return None
    return Policies(routing=watched(used.routing))
