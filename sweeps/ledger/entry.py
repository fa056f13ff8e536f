"""The actions of `blis-jax ledger` by name, and the options of each."""

from __future__ import annotations

from blis_jax.commands import values
from blis_jax.commands.options import (
    CommandOptions,
    OverwriteSwitch,
    SchedulerOption,
    option,
    switch,
    word,
)
from blis_jax.commands.options.seed_options import EnoughSeedsOptions, SeedOptions, seeds_option
from blis_jax.commands.values import OneOf, number
from blis_jax.errors import ConfigError, capital
from sweeps.claims.words import CATEGORIES, RESOLUTIONS, SHORT_FAMILIES, TYPES
from sweeps.runs.options import PartOption

NAME = "sweeps.ledger"
ACTIONS = {
    "plan": "write a hypothesis down, before it is run",
    "add": "run a hypothesis on common seeds against the baseline, and write its result",
    "note": "write findings or a resolution behind a result",
    "render": "write ledger.md from the records",
    "check": "prove that no record was changed",
    "replay": "run a row again, and compare every number",
    "status": "best row so far, null iterations in a row, open hypotheses",
}


def described(action: str) -> str:
    """Return the description of an action."""
    return f"{capital(ACTIONS[action])}."


def shown_as(examples: str) -> str:
    """Return the examples of an action as its help shows them, one per line."""
    return "examples:\n" + "\n".join(f"  %(prog)s {line}".rstrip() for line in examples.split("\n"))


class LedgerOptions(CommandOptions, title="ledger"):
    """The ledger that an action is about."""

    track: str | None = option(
        str, None, "NAME", "a track's name or folder (default: the ledger of this folder)"
    )

    def check_sense(self) -> None:
        """Refuse options that contradict each other."""

    @property
    def uses_cache(self) -> bool:
        """Return whether compiled programs are kept."""
        return True


class TrackOptions(SeedOptions, title="runs"):
    """Options of what every arm is run on, in place of the problem of a track."""

    baseline: str | None = option(
        str, None, "ARM", "STRATEGY[@POINT][:NAME=VALUE;…], what changes are against (default: the problem's)",
    )  # fmt: skip
    workload: str | None = option(
        str, None, "NAME|FILE", "built-in name or .yaml file (default: the problem's)"
    )
    rate: float | None = option(
        number, None, "RPS", "requests per second in place of the workload's"
    )
    seeds: str | None = seeds_option("default: the problem's")
    rng: str | None = option(
        OneOf("reference", "jax"), None, "NAME", "who draws the requests (default: the problem's)",
    )  # fmt: skip


class RowOptions(LedgerOptions):
    """The row that an action is about."""

    id: str | None = word("ID", "the row, such as 12 or 12-opt")

    def check_sense(self) -> None:
        """Refuse an action without its row."""
        if not self.id:
            raise ConfigError("no row is given; write its id behind the action, such as 12")

    @property
    def row(self) -> str:
        """Return the row's id."""
        return self.id or ""


class _Runs(TrackOptions, title="runs"):
    """Options for the arms to run."""

    strategy: str | None = option(
        str, None, "ARM", "STRATEGY[@POINT][:NAME=VALUE;…], as sweeps.strategies.arms reads it"
    )
    reference: str | None = option(
        str, None, "ARM", "what predictions compare with (default: the baseline)"
    )
    over: str | None = option(
        str,
        None,
        "NAME=V1,V2,…",
        "setting or rate to vary, for predictions that say falls, rises or flat",
    )


class _Hypothesis(CommandOptions, title="hypothesis"):
    """Options for the hypothesis and its predictions."""

    hypothesis: str | None = option(str, None, "TEXT", "what is expected, as one sentence")
    family: str | None = option(str, None, "NAME", ", ".join(SHORT_FAMILIES), shown="cross-policy")
    vvuq: str | None = option(str, None, "NAME", ", ".join(CATEGORIES), shown="Validation")
    type: str | None = option(str, None, "NAME", ", ".join(TYPES), shown="Dominance")
    mechanism: str | None = option(
        str, None, "TEXT", "by which mechanism (default: the strategy's description)"
    )
    diagnostic: str | None = option(str, None, "TEXT", "what it indicates if the hypothesis fails")
    preconditions: str | None = option(
        str, None, "TEXT", "what must hold for the test to mean anything"
    )
    origin: str | None = option(str, None, "TEXT", "where the hypothesis comes from")
    name: str | None = option(str, None, "TEXT", "name in the table (default: the strategy's)")
    evidence: str | None = option(
        values.OneOf("judge", "published-claim"), None, "KIND", "evidence in place of runs: judge or published-claim",
    )  # fmt: skip
    predict: tuple[str, ...] = option(
        str, (), "CLAIM",
        "METRIC <= X[%], >= X[%], in LOW..HIGH[%]; or METRIC falls, rises, flat within X% along --over; may be "
        "repeated, the first is the main one", is_repeated=True,
    )  # fmt: skip


class _Result(CommandOptions, title="result"):
    """The result of a row."""

    verdict: str | None = option(
        str, None, "WORD", "verdict on a row without predictions that runs could judge"
    )
    findings: str | None = option(
        str, None, "TEXT", "what the runs show, in words; `ledger note` adds it later"
    )
    from_: str | None = option(
        str, None, "FILE",
        "add all rows of a YAML file that are not there yet, or the row whose runs merge has joined (.jsonl)",
    )  # fmt: skip


class _Parts(PartOption, SchedulerOption, OverwriteSwitch, title="parts of the runs"):
    """Options of an action whose runs may be made in parts."""

    output: str | None = option(str, None, "PATH", "the runs of --part, .jsonl")
    resume: bool = switch("go on with the runs of --part that are there")

    def check_parts(self, joined: str | None) -> None:
        """Refuse a part together with joined runs, and options about parts without a part."""
        self.check_part(self.output)
        lone = [name for name in ("output", "resume", "overwrite") if getattr(self, name)]
        if self.part is None and lone:
            raise ConfigError(f"--{lone[0]} is about --part; give that, too, or leave it out")
        if self.part is not None and joined is not None:
            raise ConfigError("--from has the runs of all parts, and --part makes some; give one")


def is_runs(path: str | None) -> bool:
    """Return whether a path is that of a row's joined runs, a `.jsonl` file."""
    return path is not None and path.endswith(".jsonl")


class NewRowOptions(RowOptions, _Runs, EnoughSeedsOptions, _Hypothesis):
    """A hypothesis and its runs."""


class PlanOptions(
    NewRowOptions, command=f"{NAME} plan", description=described("plan"),
    examples=shown_as(
        '12 --strategy mine.yaml --hypothesis "…" --predict "ttft_p99_ms[critical] <= -50%%" --diagnostic "…"'
    ),
):  # fmt: skip
    """Options of `plan`."""


class AddOptions(
    NewRowOptions, _Result, _Parts, title="switches", command=f"{NAME} add", description=described("add"),
    examples=shown_as(
        '12\n12 --strategy mine.yaml --hypothesis "…" --predict "…" --diagnostic "…"\n'
        '13 --evidence judge --name "idea 2" --hypothesis "…" --diagnostic "…" --verdict refuted '
        '--findings "…"\n--from rows.yaml\n12 --part 1/2 --output p1.jsonl\n12 --from all.jsonl'
    ),
):  # fmt: skip
    """Options of `add`."""

    no_cache: bool = switch()

    def check_sense(self) -> None:
        """Refuse a row together with a file of rows, and neither of them."""
        self.check_parts(self.from_)
        if self.from_ is None or is_runs(self.from_):
            super().check_sense()
        elif set(self.given()) - {"track", "no_cache", "from_", "scheduler"}:
            raise ConfigError(
                "--from takes the rows of a file; leave the id and the other options out"
            )

    @property
    def uses_cache(self) -> bool:
        """Return whether compiled programs are kept."""
        return not self.no_cache


class NoteOptions(
    RowOptions, title="note", command=f"{NAME} note", description=described("note"),
    examples=shown_as('12 --findings "…" --resolution "Clean confirmation"'),
):  # fmt: skip
    """Options of `note`."""

    findings: str | None = option(str, None, "TEXT", "what was found")
    resolution: str | None = option(str, None, "TEXT", "; ".join(RESOLUTIONS))

    def check_sense(self) -> None:
        """Refuse a note without content."""
        super().check_sense()
        if not self.content():
            raise ConfigError("nothing to note; give --findings or --resolution")

    def content(self) -> dict[str, str]:
        """Return the note's content, by name in the record."""
        texts = {"findings": self.findings, "resolution": self.resolution}
        return {key: text for key, text in texts.items() if text}


class RenderOptions(
    LedgerOptions, title="render", command=f"{NAME} render", description=described("render"),
    examples=shown_as("\n--check"),
):  # fmt: skip
    """Options of `render`."""

    check: bool = switch("exit 1 if ledger.md is not up to date")
    shorten: bool = switch(
        "first move large parts of the lines of ledger.jsonl, where version 0.1 had them, to files beside it"
    )


class CheckOptions(
    LedgerOptions, title="check", command=f"{NAME} check", description=described("check"),
    examples=shown_as("\n--anchor 3f2a…"),
):  # fmt: skip
    """Options of `check`."""

    anchor: str | None = option(
        str, None, "HASH", "hash of a record that must still be there; keep it outside the ledger"
    )


class LedgerReplayOptions(
    RowOptions, _Parts, title="parts of the runs", command=f"{NAME} replay", description=described("replay"),
    examples=shown_as("12\n12 --part 1/2 --output p1.jsonl\n12 --from all.jsonl"),
):  # fmt: skip
    """Options of `replay`."""

    from_: str | None = option(
        str,
        None,
        "FILE",
        "compare the runs that merge has joined (.jsonl), in place of making them",
    )

    def check_sense(self) -> None:
        """Refuse a file that is not one of joined runs."""
        super().check_sense()
        self.check_parts(self.from_)
        if self.from_ is not None and not is_runs(self.from_):
            raise ConfigError(f"--from: got {self.from_}, allowed is a .jsonl, as merge writes it")


class StatusOptions(
    LedgerOptions, title="status", command=f"{NAME} status", description=described("status"),
    examples=shown_as("\n--null-limit 5"),
):  # fmt: skip
    """Options of `status`."""

    null_limit: int | None = option(
        values.whole, None, "K", "null iterations to stop after (default: the track's)"
    )
    objective: str | None = option(
        str, None, "METRIC", "metric by which the best row is the best (default: the track's)"
    )

    def check_sense(self) -> None:
        """Refuse a limit of iterations below 1."""
        if self.null_limit is not None and self.null_limit < 1:
            raise ConfigError(f"--null-limit must be at least 1, got {self.null_limit}")


OPTIONS: dict[str, type[LedgerOptions]] = {
    "plan": PlanOptions,
    "add": AddOptions,
    "note": NoteOptions,
    "render": RenderOptions,
    "check": CheckOptions,
    "replay": LedgerReplayOptions,
    "status": StatusOptions,
}
