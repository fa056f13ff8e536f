"""`blis-jax models`, `gpus`, `strategies`, `workloads`, `metrics`, `policies`: the names of a kind, a line each."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib import resources
from itertools import takewhile
from typing import NamedTuple

from blis_jax.commands import cli, values
from blis_jax.commands.parser import Parser
from blis_jax.core.kinds import KINDS
from blis_jax.errors import ConfigError, closest
from blis_jax.latency.deployment import gpu_description, shipped_gpus
from blis_jax.latency.model_description import is_shipped, shipped_models
from blis_jax.latency.registry import fitted, known_models
from blis_jax.metrics.metric import METRICS
from blis_jax.metrics.scalars import lookup, pooled_names
from blis_jax.policies import registry
from blis_jax.policies.numbers import FIXED, Number, numbers_of
from blis_jax.policies.their_names import POLICIES
from blis_jax.reports import render
from blis_jax.reports.findings import Answer, Findings, Row, Table
from blis_jax.reports.render import WIDTH, table_text
from blis_jax.workload.distribution import PRESETS
from blis_jax.workload.spec import list_builtin
from sweeps.runs.requests import list_own
from sweeps.strategies.file import SHORT_NAMES, list_library, load_strategy
from sweeps.strategies.moved import PATHS

# --- the reference tables of all policies, in Markdown, from where they are declared -------------


HEAD = ("policy", "what it does")
NUMBERS_HEAD = (
    "policy", "number", "meaning", "unit", "default", "allowed", "searched", "setting",
)  # fmt: skip


def policies_page(names: Mapping[str, Iterable[str]] = registry.NAMES) -> str:
    """Return the table of kinds, then those of the policies of each kind, named as settings name them."""
    parts = (_section(kind, of_kind) for kind, of_kind in names.items() if of_kind)
    return "\n\n".join((kinds_table(), *parts)) + "\n"


def kinds_table() -> str:
    """Return a table of the kinds of policies: what a policy of each kind decides, and what its function returns."""
    rows = (
        (kind.singular, kind.decides, kind.returns, f"`@{kind.decorator}`")
        for kind in KINDS.values()
    )
    return table_text(("kind", "decides", "returns", "decorator"), rows)


def _section(kind: str, names: Iterable[str]) -> str:
    """Return tables of one kind's policies, with llm-d's names for them, and of these policies' numbers, one per
    row."""
    policies = {name: registry.find(kind, name) for name in names}
    theirs = {ours: f", `{other}`" for other, ours in POLICIES.get(kind, {}).items()}
    what = [
        (f"`{name}`{theirs.get(name, '')}", (policy.decide.__doc__ or "").strip().splitlines()[0])
        for name, policy in policies.items()
    ]
    numbers = [
        number_row(kind, name, field, number)
        for name, policy in policies.items()
        for field, number in numbers_of(policy.params).items()
    ]
    parts = [f"## `{KINDS[kind].setting}`", table_text(HEAD, what)]
    return "\n\n".join(parts + ([table_text(NUMBERS_HEAD, numbers)] if numbers else []))


def number_row(kind: str, name: str, field: str, number: Number) -> tuple[str, ...]:
    """Return the table cells of one number of a policy; where the policy is a file's, with the number's setting."""
    searched = number.searched
    bounds = f"{searched[0]:g} to {searched[1]:g}, {number.prior}" if searched else ""
    short_name = name.rpartition(":")[2]
    if short_name == name:
        setting = registry.setting_of(name, field, number)
    elif number.setting in registry.settings():
        setting = number.setting
    else:
        setting = f"{f'{kind}.{short_name}' if kind == 'scorer' else kind}.{field}"
    where = "fixed by BLIS" if number.setting == FIXED else f"`{setting}`"
    allowed = number.allowed + ", whole" * number.is_whole
    default = f"{number.default:g}"
    return (
        f"`{short_name}`", f"`{field}`", number.meaning, number.unit, default, allowed, bounds, where,
    )  # fmt: skip


# --- `blis-jax models` ---------------------------------------------------------------------------


NAME = "sweeps.lists"
LONGEST_NAME = 44
FIRST = ("vllm", "llm-d-default")  # servers as their releases start them
Lines = Iterator[tuple[str, str]]  # a name and what it is
Groups = dict[str, list[tuple[str, str]]]  # by title


class NameList(NamedTuple):
    """A list of names in titled groups, and the sentence printed below the list."""

    about: str
    groups: Callable[[], dict[str, Lines]]
    note: str = ""


# --- what a model's step times come from ------------------------------------------------------------


def _models() -> Lines:
    for name in sorted({*known_models(), *shipped_models()}):
        by_gpu: dict[str, list[int]] = {}
        for fit in fitted(name):
            by_gpu.setdefault(fit.gpu, []).append(fit.tp)
        fits = "; ".join(
            f"{gpu} × {', '.join(map(str, sorted(set(tps))))}" for gpu, tps in by_gpu.items()
        )
        known = [f"fitted: {fits}"] * bool(fits) + ["described"] * is_shipped(name)
        yield name, "; ".join(known)


def _gpus() -> Lines:
    with_fits: dict[str, set[str]] = {}
    for name in known_models():
        for fit in fitted(name):
            with_fits.setdefault(fit.gpu, set()).add(name)
    for gpu in sorted({*with_fits, *shipped_gpus()}):
        known = [f"fitted: {len(with_fits[gpu])} models"] if gpu in with_fits else []
        if gpu in shipped_gpus():
            chip = gpu_description(gpu)
            known.append(
                f"described: {chip.peak_tflops:,.0f} TFLOP/s, {chip.bandwidth_tbs:g} TB/s, {chip.memory_gib:,.0f} GiB"
            )
        yield gpu, "; ".join(known)


_COVERED = (
    "fitted: step times fitted to measured runs on this GPU × TP, the default. described: sizes are known, so "
    "latency_model=trained-physics (or roofline, served-physics) computes step times for every described pair. "
    "Neither: give --model-config config.json, or a GPU as FILE:NAME; or fit your own server with blis-jax calibrate."
)


# --- the others -------------------------------------------------------------------------------------


def _sentence(text: str) -> str:
    """Return the first sentence."""
    return re.split(r"(?<=[.;]) (?=[A-Z])|(?<=\\.)$", " ".join(text.split()))[0]


def _strategies() -> dict[str, Lines]:
    def lines(names: Sequence[str]) -> Lines:
        for name in names:
            yield name, _sentence(load_strategy(name).description)

    others = [name for name in list_library() if name not in FIRST]
    return {
        "servers of today": lines(FIRST),
        "short names": iter((name, f"as {whole}") for name, whole in SHORT_NAMES.items()),
        "of the records and studies": lines(others),
    }


def _comment(package: str, folder: str, name: str) -> str:
    """Return the first sentence of the comment that a workload file begins with."""
    file = resources.files(package).joinpath(folder, f"{name}.yaml")
    lines = file.read_text(encoding="utf-8").splitlines()
    begins = takewhile(lambda line: line.startswith("#"), lines)
    return _sentence(" ".join(line.removeprefix("#") for line in begins))


def _workloads() -> dict[str, Lines]:
    presets = (
        (name, f"about {prompt.mean:g} prompt and {output.mean:g} output tokens, with --rate")
        for name, (prompt, output) in PRESETS.items()
    )
    return {
        "built in": (
            (name, _comment("blis_jax", "data/workloads", name)) for name in list_builtin()
        ),
        "of the studies": ((name, _comment("sweeps", "workloads", name)) for name in list_own()),
        "presets of run and convert": presets,
    }


def _metrics() -> dict[str, Lines]:
    def lines(names: Sequence[str]) -> Lines:
        for name in names:
            metric = lookup(name)[0]
            yield name, f"{metric.estimand}; {metric.unit}, {metric.direction} is better"

    return {"of a run": lines(sorted(METRICS)), "of all runs together": lines(pooled_names())}


def all_policies() -> dict[str, tuple[str, ...]]:
    """Return all policies by kind: those of blis_jax first, then those of the tracks' experiments, named by path."""
    return {kind: (*names, *PATHS.get(kind, {}).values()) for kind, names in registry.NAMES.items()}


def _policies() -> dict[str, Lines]:
    def lines(kind: str, names: Sequence[str]) -> Lines:
        theirs = {ours: other for other, ours in POLICIES.get(kind, {}).items()}
        for name in names:
            llm_d = f" (llm-d: {theirs[name]})" if name in theirs else ""
            yield name, _sentence(registry.find(kind, name).decide.__doc__ or "") + llm_d

    return {
        f"{KINDS[kind].setting}: {KINDS[kind].decides}": lines(kind, names)
        for kind, names in all_policies().items()
        if names
    }


LISTS = {
    "models": NameList("models, and where their step times come from", lambda: {"": _models()}, _COVERED),
    "gpus": NameList("GPUs, and how many models are fitted on each", lambda: {"": _gpus()}, _COVERED),
    "strategies": NameList("strategies that commands take by name", _strategies,
                        "An arm is [LABEL=]STRATEGY[:NAME=VALUE;…]; a file in YAML will do, too."),
    "workloads": NameList("workloads that commands take by name", _workloads,
                       "A file in YAML will do, too; a recorded trace is given with --trace."),
    "metrics": NameList("metrics, with their units and directions", _metrics,
                     "[class] behind a name, as in ttft_p99_ms[critical], is of one SLO class."),
    "policies": NameList("policies by the setting that names them", _policies,
                      "--numbers prints their numbers and settings; path/to/file.py:Name is a policy of yours."),
}  # fmt: skip


# --- the command ------------------------------------------------------------------------------------


def _body(name: str, arguments: Sequence[str] | None) -> int:
    """Print the list called `name`; where `name` is empty, the first argument names the list."""
    about = f"List {LISTS[name].about}" if name else "List the names of a kind"
    parser = Parser(prog=f"python -m {NAME}", description=f"{about}, a line each.\n")
    if not name:
        parser.add_argument(
            "name", metavar="LIST", type=values.OneOf(*LISTS), help=", ".join(LISTS)
        )
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="?",
        default="",
        help="show only lines, or groups, with this text",
    )
    if name in ("", "policies"):
        numbers = "print the reference tables of policies with all numbers, in Markdown"
        parser.add_argument("--numbers", action="store_true", help=numbers)
    options = parser.given(sys.argv[1:] if arguments is None else arguments)
    name = name or options["name"]
    text = options.get("text", "")
    if options.get("numbers") and not text:
        print(policies_page(all_policies()), end="")
        return 0
    groups = _groups(name, text)
    if options.get("numbers"):
        print(_numbers_page(groups), end="")
        return 0
    if render.is_taken():
        render.show(_findings(name, groups))
    else:
        print("\n".join(_shown(name, groups)))
    return 0


def _numbers_page(groups: Groups) -> str:
    """Return the reference tables of the policies in these lines."""
    listed = {
        title.partition(":")[0]: {name for name, _ in pairs} for title, pairs in groups.items()
    }
    sections = (
        _section(kind, shown)
        for kind, names in all_policies().items()
        if (shown := [name for name in names if name in listed.get(KINDS[kind].setting, ())])
    )
    return "\n\n".join(sections) + "\n"


def _groups(name: str, text: str) -> Groups:
    """Return the lines that contain `text` by their groups' titles; a group whose name has `text` is whole."""
    everything = {title: list(pairs) for title, pairs in LISTS[name].groups().items()}
    named = {title: title.partition(":")[0] for title in everything}  # such as routing_policy
    groups = {
        title: [pair for pair in pairs if text.lower() in " ".join((named[title], *pair)).lower()]
        for title, pairs in everything.items()
    }
    if not any(groups.values()):
        names = [name for pairs in everything.values() for name, _ in pairs]
        hint = closest(text, names) or f"; leave it out to see all {len(names)}"
        raise ConfigError(f"no line of {name} has the text {text!r}{hint}")
    return groups


def _findings(name: str, groups: Groups) -> Findings:
    """Return the lines as a table, for Python."""
    columns = ("name", "what it is", "group")[: 3 if any(groups) else 2]
    lines = [(one, about, title) for title, pairs in groups.items() for one, about in pairs]
    rows = tuple(Row(line[: len(columns)]) for line in lines)
    answer = Answer.of(
        f"Which names does blis-jax {name} list?",
        f"{len(rows)} names.",
        "These are declarations; nothing was simulated.",
        "No runs.",
        LISTS[name].note,
    )
    return Findings(answer, (Table(columns, rows, LISTS[name].about, name=name),))


def _shown(name: str, groups: Groups) -> Iterator[str]:
    """Yield the lines below their groups' titles."""
    for title, pairs in groups.items():
        if title and pairs:
            yield f"{title}:"
        yield from _in_columns(pairs, "  " if title else "")
        if title and pairs:
            yield ""
    yield from ["", *textwrap.wrap(LISTS[name].note, WIDTH)][bool(next(iter(groups))) :]


def _in_columns(pairs: Sequence[tuple[str, str]], indent: str) -> Iterator[str]:
    width = min(max((len(name) for name, _ in pairs), default=0), LONGEST_NAME) + 2
    for name, words in pairs:
        first = f"{indent}{name:<{width}}"
        if len(name) > LONGEST_NAME:
            yield f"{indent}{name}"
            first = " " * (len(indent) + width)
        later = " " * (len(indent) + width)
        lines = textwrap.wrap(words, WIDTH, initial_indent=first, subsequent_indent=later)
        yield from lines or [first.rstrip()]


def _main(name: str, arguments: Sequence[str] | None = None) -> int:
    return cli.run_command(NAME, partial(_body, name), arguments)


models, gpus, strategies, workloads, metrics, policies = (partial(_main, name) for name in LISTS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the list that the first word names; return the exit code."""
    return _main("", arguments)


if __name__ == "__main__":
    sys.exit(main())
