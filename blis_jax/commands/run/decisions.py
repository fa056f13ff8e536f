"""Options of decision traces: what admission and the router decided, and what a better choice would have saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blis_jax.cluster.named_policies import numbered
from blis_jax.commands import cli
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import CommandOptions, option
from blis_jax.errors import UnsupportedError
from blis_jax.policies.contract import Policies
from blis_jax.policies.routing.by_load import watched

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig


class DecisionTraceOptions(CommandOptions, title="decisions of the run"):
    """Options for printing the decisions of admission and the router."""

    trace_level: str = option(
        cli.one_of("none", "decisions"),
        "none",
        "LEVEL",
        "whether --summarize-trace prints the decisions",
    )
    counterfactual_k: int = option(
        cli.at_least(0), 0, "N", "above 0: print also by how much a better instance was missed; all instances "
        "count, as in BLIS",
    )  # fmt: skip
    summarize_trace: bool = option(
        cli.truth,
        False,
        "BOOL",
        "with --trace-level decisions, print what admission and the router decided",
    )

    @property
    def is_shown(self) -> bool:
        """Return whether the decisions are printed."""
        return self.summarize_trace and self.trace_level == "decisions"

    @property
    def wants_regret(self) -> bool:
        """Return whether what better choices would have saved is printed too."""
        return self.is_shown and self.counterfactual_k > 0


_BY_LOAD = ("round-robin", "always-busiest")  # they miss better instances, as BLIS scores them
_BEST = ("least-loaded", "weighted")  # they never do, with a picker that takes the best
_OF_BEST = ("first-best", "drawn-best", "random-best")


def check(options: DecisionTraceOptions, config: ClusterConfig, notes: Notes) -> None:
    """Say which options have no effect.

    Raises:
        UnsupportedError: the routing policy has no scores of BLIS's to compare by.
    """
    has_level = options.trace_level == "decisions"
    if options.counterfactual_k and not options.is_shown:
        notes.warn("--counterfactual-k has no effect without --trace-level and --summarize-trace")
    if options.summarize_trace and not has_level:
        notes.warn("--summarize-trace has no effect without --trace-level decisions")
    if has_level and not options.summarize_trace:
        notes.warn("--trace-level has no effect without --summarize-trace")
    is_known = config.routing_policy in (*_BY_LOAD, *_BEST)
    is_best = config.routing_policy != "weighted" or config.routing_picker in _OF_BEST
    if options.wants_regret and not (is_known and is_best):
        what = config.routing_picker if is_known else config.routing_policy
        raise UnsupportedError(
            f"--counterfactual-k is not supported with {what}: only {', '.join((*_BY_LOAD, *_BEST))} have "
            "BLIS's scores; leave it out, or take one of them"
        )


def router_watched(options: DecisionTraceOptions, config: ClusterConfig) -> Policies | None:
    """Return a router that also keeps its regret for every request, where that is asked for and can be
    above 0; else None.
    """
    if not options.wants_regret or config.routing_policy not in _BY_LOAD:
        return None

    used = numbered(config)
    if used.decode is not None:  # its scorers choose for all requests that are not split
        return None
    return Policies(routing=watched(used.routing))
