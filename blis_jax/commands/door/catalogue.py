"""All commands in groups: the words after `blis-jax`, the module that runs them, and one line about each.

Modules are named and not imported, so that the list prints at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

from blis_jax.commands.parser import Parser, called_as, declared


class Command(NamedTuple):
    """A command; `module` is for `python -m`, `place` is the module of its `main` if that is another one."""

    name: str  # what follows `blis-jax`, one word or two
    module: str
    about: str
    place: str = ""  # `module:function` where the function is not called so

    def main(self) -> Callable[[Sequence[str] | None], int]:
        """Import the command's module and return the function that runs it."""
        module, _, function = (self.place or self.module).partition(":")
        main_: Callable[[Sequence[str] | None], int] = getattr(
            import_module(module), function or "main"
        )
        return main_


def _package(name: str, module: str, about: str) -> Command:
    return Command(name, module, about, f"{module}.__main__")


def _list(name: str, about: str) -> Command:
    return Command(name, "sweeps.lists", about, f"sweeps.lists:{name}")


def _here(name: str, place: str, about: str) -> Command:
    place = f"blis_jax.commands.{place}"
    return Command(name, place.partition(":")[0], about, place)


GROUPS: tuple[tuple[str, tuple[Command, ...]], ...] = (
    ("simulate", (
        Command("run", "blis_jax.run", "one cluster under one workload or trace, with BLIS's figures"),
        Command("replay", "blis_jax.commands.run.replay", "a TraceV2 trace as BLIS's replay of August 2026 runs it"),
        Command(
            "sweep", "blis_jax.sweep", "strategies on hundreds of common seeds, compared per SLO class",
            "sweeps.sweep.command",
        ),
    )),
    ("workload files", (
        _here("convert", "workload_files:convert", "a preset or an inference-perf workload as a workload file"),
        _here("compose", "workload_files:compose", "the clients of several workload files as one file"),
    )),
    ("compare strategies", (
        _package("compare", "sweeps.compare", "paired differences, verdicts, and where TTFT comes from"),
        Command("select", "sweeps.select", "the best of several strategies, with a stated probability of being right"),
        Command("ablate", "sweeps.ablate", "what each component of a strategy contributes"),
        Command("limits", "sweeps.limits", "goodput under every choice of the classes' limits, as a map"),
        _package("robustness", "sweeps.robustness", "which strategy is best in which regime"),
        Command("curve", "sweeps.curve", "latency against throughput, the saturation rate, and the Pareto front"),
        _package("capacity", "sweeps.capacity", "the smallest cluster that meets service targets, and how surely"),
        Command("recommend", "sweeps.recommend", "the cluster for a model, a GPU and targets, and how it is started"),
        _package("review", "sweeps.review", "judges that look for flaws in two or three candidates"),
        Command("merge", "sweeps.merge", "the parts of one command's runs, made with --part, as one result"),
    )),
    ("search and explain", (
        Command("optimize", "sweeps.optimize", "search a strategy's parameters for the best score"),
        Command("evaluate", "sweeps.evaluate", "a JSON request to metrics, for optimisers of any kind"),
        _package("sensitivity", "sweeps.sensitivity", "which parameters matter, for which metric"),
        Command("gradient", "sweeps.gradient", "smoothed gradients of metrics by settings"),
    )),
    ("keep a record", (
        Command("init", "sweeps.init", "begin a track: a problem, its measured baseline, an empty ledger"),
        _package("ledger", "sweeps.ledger", "hypotheses before their runs, results behind them"),
        _package("principles", "sweeps.principles", "the principles of the record, each as an experiment"),
    )),
    ("put to use", (
        Command("evolve read", "sweeps.evolve.read", "an evolved routing function of Go as a policy"),
        Command("evolve evaluator", "sweeps.evolve.evaluator", "a search's evaluator, for OpenEvolve and SkyDiscover"),
        Command("evolve search", "sweeps.evolve.search", "a router bred for a task, without a language model"),
        Command("evolve check", "sweeps.evolve.check", "an evolved router on seeds that its search did not use"),
        _package("promote", "sweeps.promote", "a strategy as a change for llm-d, with evidence and gates"),
    )),
    ("your own data", (
        _package("traces", "blis_jax.traces", "what a recorded trace holds; the same in another format"),
        _package("calibrate", "blis_jax.calibrate", "latency coefficients from a measured run"),
        _package("predict", "papers.real_servers.predict", "what real servers would measure, with intervals"),
    )),
    ("surrogates", (
        _package("dataset", "sweeps.dataset", "runs all over a strategy's space, to learn from"),
        Command("surrogate train", "surrogate.train", "fit an ensemble to a dataset, calibrate its intervals"),
        Command("surrogate predict", "surrogate.predict", "metrics of points, with intervals"),
        Command("surrogate coverage", "surrogate.coverage", "how often the intervals hold, tested"),
        Command("surrogate report", "surrogate.report", "a surrogate against its test points"),
    )),
    ("reproduce", (
        _package("papers", "papers", "what the results pages found, and the command that makes each again"),
        _package("papers strategy_evolution", "papers.strategy_evolution", "the claims of the scheduling record"),
        _package("papers routing_evolution", "papers.routing_evolution", "the claims of the routing record"),
        _package("papers corrected", "papers.corrected", "both records with BLIS's defects and without them"),
        _package("papers two_tracks", "papers.two_tracks", "the winners of both tracks on both tracks' workloads"),
        _package("papers sensitivity", "papers.sensitivity", "indices of every space, and of its surrogate"),
        _package("papers calibration", "papers.calibration", "fits to the published measured runs"),
        Command("papers prefill", "papers.calibration.prefill", "which form of prefill holds for large batches"),
        _package("papers step_law", "papers.step_law", "what the law of a step lacks, by measured steps"),
        _package("papers openevolve", "papers.openevolve", "evolved routers: published numbers, and new seeds"),
        _package("papers router_search", "papers.router_search", "routers bred without a language model, on new seeds"),
        _package("papers real_servers", "papers.real_servers", "predictions of real servers against measured runs"),
        _package("papers surrogate", "papers.surrogate", "every surrogate, from its dataset to its tables"),
    )),
    ("what there is", (
        _list("models", "models, and on which GPUs their step times are fitted"),
        _list("gpus", "GPUs, and what is known of them"),
        _list("strategies", "strategies that commands take by name"),
        _list("workloads", "workloads that commands take by name"),
        _list("metrics", "metrics, with their units and directions"),
        _list("policies", "policies by the setting that names them"),
    )),
    ("this program", (
        _here("options", "door.declarations:options_page", "what options mean, in every command"),
        _here("doctor", "door.dispatch:doctor", "what is installed, what is missing for which command"),
        _here("completion", "door.declarations:completion", "completion for bash, zsh or fish"),
    )),
)  # fmt: skip
COMMANDS = {command.name: command for _, group in GROUPS for command in group}


# that list them
WITH_ACTIONS = {
    "ledger": "sweeps.ledger.entry",
    "promote": "sweeps.promote.options",
}


def actions_of(name: str) -> tuple[str, ...]:
    """Return the words that may follow a command's first word: its actions."""
    if name in WITH_ACTIONS:
        return tuple(import_module(WITH_ACTIONS[name]).ACTIONS)
    return tuple(command.split()[1] for command in COMMANDS if command.startswith(f"{name} "))


# --- what the commands declare: their parsers, and the words that an option's value may be --------


NEEDS_ACTION = ("ledger",)  # commands that do nothing without one


def parsers() -> dict[str, Parser]:
    """Return the parser of every command by its words after `blis-jax`, without running any command."""
    parser_by_words = {}
    for name, command in COMMANDS.items():
        actions = actions_of(name) if name in WITH_ACTIONS else ()
        words_alone = ("",) if name not in NEEDS_ACTION else ()
        with called_as(command.module, f"blis-jax {name}"):
            for action in (*words_alone, *actions):
                words = [action] if action else []
                parser_by_words[f"{name} {action}".strip()] = declared(command.main(), words)
    return parser_by_words


def options_of(parser: Parser) -> list[argparse.Action]:
    """Return the options that help shows, in its order."""
    return [
        action
        for action in parser._actions
        if action.option_strings and action.help != argparse.SUPPRESS
    ]


def takes_value(option: argparse.Action) -> bool:
    """Return whether a value follows the option."""
    return option.nargs != 0


def words_for(action: argparse.Action) -> tuple[str, ...]:
    """Return the words allowed as an option's value or as a positional argument; empty if any text is."""
    choices = getattr(action.type, "choices", None) or action.choices
    if choices:
        return tuple(map(str, choices))
    if action.dest in ("workload", "workload_spec"):
        return tuple(import_module("blis_jax.workload.spec").list_builtin())
    if action.dest == "model":
        return tuple(import_module("blis_jax.latency.registry").known_models())
    if action.dest in ("strategy", "arm", "arms", "candidates", "baseline", "against", "criteria"):
        return tuple(import_module("sweeps.strategies.arms").list_names())
    return ()
