"""The options that the actions of `blis-jax promote` share, and the promotion that an action works on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from blis_jax import lazy
from blis_jax.commands import cli, values
from blis_jax.commands.options import CommandOptions, option, switch, word, words
from blis_jax.commands.options.seed_options import (
    RequestCount,
    SeedOptions,
    given_seeds,
    seeds_of,
    seeds_option,
)
from blis_jax.errors import ConfigError, capital
from blis_jax.files import input_files
from blis_jax.statistics.intervals import CONFIDENCE
from blis_jax.statistics.paired import fewest_for_verdict
from sweeps.promote import DEFAULT_TARGET, NAME
from sweeps.promote.promotion import identity_of, make_promotion

if TYPE_CHECKING:
    from sweeps.promote import stages
    from sweeps.promote import store as kept
    from sweeps.promote.promotion import Promotion
    from sweeps.promote.store import PromotionStore
else:  # it loads JAX, for which no refusal waits
    kept = lazy.Module("sweeps.promote.store")
    stages = lazy.Module("sweeps.promote.stages")

FOLDER = "out/promotion"
NUM_SEEDS = 16
NUM_SURVIVAL_SEEDS = 64

ACTIONS = {
    "maps": "which interface, signal and gap of the target each part of the strategy meets",
    "translate": "compile the policies to Go, write the configuration of router and engines",
    "hypothesise": "write down what must hold on a cluster, what may break it, what must not change",
    "tests": "write benchmark profiles and the evaluation script",
    "validate": "judge every hypothesis by benchmark reports, measured or simulated",
    "document": "write findings, the promotion report and feedback to the search",
    "bundle": "write the change as a branch, a patch and a text for reviewers",
    "gate": "look for findings at a gate",
    "approve": "open a gate, with a name and a reason",
    "reject": "close a gate, with a name and a reason",
    "status": "what is made, which gate is open, what a person has to decide",
    "survival": "does the gain survive what a real cluster has? by simulation, as a page",
}
STAGE_ACTIONS = tuple(list(ACTIONS)[:7])
_EXAMPLES = {
    "maps": "iter13_class_lead@found --output out/promotion",
    "translate": "--output out/promotion",
    "hypothesise": "--output out/promotion",
    "tests": "--output out/promotion",
    "validate": "--output out/promotion --dry-run\n--output out/promotion --reports results",
    "document": "--output out/promotion",
    "bundle": "--output out/promotion",
    "gate": "1 --output out/promotion",
    "approve": '1 --output out/promotion --by "A. Reviewer <a@example.org>" --reason "It is what was simulated."',
    "reject": '2 --output out/promotion --by "A. Reviewer <a@example.org>" --reason "No hypothesis for two replicas."',
    "status": "--output out/promotion",
    "survival": "iter13_class_lead@found --output survival.md\n"
    "iter13_class_lead@found iter21_intent@found --output survival.md",
}
_FORM = "[LABEL=]STRATEGY[@POINT][:NAME=VALUE…]"


class FolderOptions(CommandOptions, title="output"):
    """Hold the folder of a promotion."""

    output: str = option(str, FOLDER, "DIR", "folder of the promotion")

    def folder(self) -> Path:
        """Return the folder, checked."""
        folder = Path(self.output)
        cli.check_writable(folder, is_folder=True)
        return folder


class TargetOptions(CommandOptions, title="promotion"):
    """Hold the version of llm-d that is written for, and the strategy that is compared with."""

    target: str | None = option(
        str, None, "NAME@VERSION", "version of llm-d that is written for", shown=DEFAULT_TARGET
    )
    baseline: str | None = option(
        str, None, "ARM", "what the strategy is compared with (default: that of its file)"
    )


class _ImageOptions(CommandOptions, title="promotion"):
    """Hold the image of the endpoint picker."""

    image: str | None = option(
        str, None, "IMAGE", "REGISTRY/REPOSITORY:TAG of the endpoint picker with the plugins; gate 1 asks for it"
    )  # fmt: skip


class _StageSwitches(CommandOptions, title="switches"):
    """Hold which stages and programs are made again."""

    overwrite: bool = switch("make stages again that a person has edited")
    no_cache: bool = switch()


class StageOptions(TargetOptions, _ImageOptions, FolderOptions, _StageSwitches):
    """Hold the options of a stage."""

    strategy: str | None = word("STRATEGY", _FORM)

    def promotion(self, store: PromotionStore, *, may_be_its_baseline: bool = False) -> Promotion:
        """Return the promotion that the options describe, with the folder's values as defaults."""
        return promotion_of(
            store, self.strategy, self.baseline, self.target, self.image,
            may_be_its_baseline=may_be_its_baseline,
        )  # fmt: skip


class Evidence(RequestCount, SeedOptions, title="evidence"):
    """Hold what hypotheses are judged by."""

    reports: str | None = option(
        str, None, "DIR", "measured reports, as SCENE/ARM/RUN.yaml below the folder"
    )
    seeds: str | None = seeds_option(f"of the dry run; default: {NUM_SEEDS}")
    survival_seeds: int = option(
        values.at_least(fewest_for_verdict(CONFIDENCE)),
        NUM_SURVIVAL_SEEDS,
        "N",
        "seeds of the table of what the gain survives",
    )
    dry_run: bool = switch("make the reports by simulation; everything that follows says so")
    resume: bool = switch("go on with the evidence that a stopped call left")

    def evidence(self) -> dict[str, Any]:
        """Return the settings of the evidence as plain values, reports as texts by path; empty if none is named."""
        if self.dry_run and self.reports is not None:
            raise ConfigError(
                "--reports: --dry-run makes the reports by simulation; give one of them"
            )
        common: dict[str, Any] = {
            "survival_seeds": self.survival_seeds,
            "num_requests": self.num_requests,
        }
        if not self.dry_run and given_seeds(self) is not None:
            raise ConfigError("--seeds are those of --dry-run; give that too, or leave them out")
        if self.dry_run:
            return common | {"seeds": list(seeds_of(self, NUM_SEEDS))}
        return {} if self.reports is None else common | {"reports": reports_in(Path(self.reports))}


class ValidateOptions(StageOptions, Evidence):
    """Hold the options of the stages that judge by evidence."""


class GateOptions(FolderOptions):
    """Hold the gate that an action is about."""

    gate: str | None = word("GATE", "1, 2 or 3")

    def number(self) -> int:
        """Return the gate's number."""
        if self.gate not in ("1", "2", "3"):
            raise ConfigError(
                f"gate {self.gate!r} is unknown; give 1, 2 or 3"
                if self.gate
                else "no gate is given; give 1, 2 or 3"
            )
        return int(self.gate)


class DecisionOptions(GateOptions, title="decision"):
    """Hold a person's decision about a gate."""

    by: str | None = option(str, None, "NAME", "who decides: NAME <ADDRESS>")
    reason: str | None = option(str, None, "TEXT", "why")
    without_go: bool = switch("approve gate 1 although no Go toolchain has compiled the plugins")

    def signed(self) -> tuple[str, str]:
        """Return the name and the reason of a decision; refuse missing or malformed ones."""
        for name, text in (("by", self.by), ("reason", self.reason)):
            if not text:
                raise ConfigError(
                    f"--{name} is missing; a decision has a name (--by) and a reason (--reason)"
                )
        if not re.fullmatch(r"[^<>]+ <[^<>@\s]+@[^<>@\s]+>", str(self.by).strip()):
            raise ConfigError(
                f'--by: {self.by!r} is no signature; give name and address, such as "A. Reviewer <a@example.org>"'
            )
        return str(self.by), str(self.reason)


class SurvivalOptions(TargetOptions, RequestCount, SeedOptions, title="page"):
    """Hold the options of `survival`."""

    strategies: tuple[str, ...] = words("STRATEGY", _FORM)
    output: str = option(
        str, "out/survival.md", "PATH", "page to write, .md; its numbers go beside it as .json"
    )
    concerns: str | None = option(
        str, None, "A,B,…", "rows of the page, by the names in Map C (default: all of them)"
    )
    seeds: str | None = seeds_option(f"default: {NUM_SURVIVAL_SEEDS}")
    resume: bool = switch()
    no_cache: bool = switch()


Kind = TypeVar("Kind", bound=CommandOptions)


def read_action(kind: type[Kind], action: str, arguments: Sequence[str]) -> Kind:
    """Parse the options of an action from the words after its name."""
    examples = "\n".join(f"  %(prog)s {line}" for line in _EXAMPLES[action].split("\n"))
    description = f"{capital(ACTIONS[action])}."
    return kind.called(f"{NAME} {action}", description, f"examples:\n{examples}").read(arguments)


def actions_text() -> str:
    """Return the list of actions with their descriptions, for the help text of `blis-jax promote`."""
    width = max(map(len, ACTIONS)) + 2
    actions = "".join(f"  {name:<{width}}{text}\n" for name, text in ACTIONS.items())
    return f"actions, each with a --help of its own:\n{actions}\n"


# --- what they are about --------------------------------------------------------------------------


def promotion_of(
    store: PromotionStore,
    strategy: str | None = None,
    baseline: str | None = None,
    target: str | None = None,
    image: str | None = None,
    *,
    may_be_its_baseline: bool = False,
) -> Promotion:
    """Return the promotion from the given words, else the folder's; begin the folder, or refuse another promotion's."""
    before = store.identity() if store.is_begun else {}
    strategy = strategy or before.get("strategy")
    if strategy is None:
        raise ConfigError(
            "no strategy is given; name one of the library, a .yaml file or the .json of a search, as in "
            "`blis-jax promote iter13_class_lead@found`"
        )
    if strategy in ACTIONS:
        raise ConfigError(f"{strategy} is an action; write it first, before the strategy")
    promotion = make_promotion(
        strategy,
        baseline or before.get("baseline"),
        target or before.get("target") or DEFAULT_TARGET,
        image or stages.translated_image(store),
        may_be_its_baseline=may_be_its_baseline,
    )
    kept.check_target(promotion.target)  # before the folder is that of this target
    store.begin(identity_of(promotion))
    return promotion


def reports_in(folder: Path) -> dict[str, str]:
    """Return the texts of all reports below a folder, by relative path."""
    if not folder.is_dir():
        raise ConfigError(
            f"--reports: {folder} is not a folder; give one with SCENE/ARM/RUN.yaml below it"
        )
    texts = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".yaml", ".yml", ".json"):
            texts[path.relative_to(folder).as_posix()] = input_files.read_text(
                path, "a benchmark report"
            )
    if not texts:
        raise ConfigError(
            f"--reports: {folder} holds no .yaml or .json file; reports are SCENE/ARM/RUN.yaml"
        )
    return texts
