"""What the actions of `python -m sweeps.promote` share: names, parsers, the promotion that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.commands import cli
from blis_jax.commands.cli import Flag, Parser
from blis_jax.commands.flags import seed_options
from blis_jax.errors import ConfigError
from blis_jax.files import input_files

if TYPE_CHECKING:
    from sweeps.promote.promotion import Promotion
    from sweeps.promote.store import PromotionStore

NAME = "sweeps.promote"
DEFAULT_TARGET = "llm-d-router@0.10.0"
USUAL_BASELINE = "iter00_baseline"
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
_OUTPUT = Flag("output", str, None, "DIR", f"folder of the promotion (default: {FOLDER})")
_OF = (
    Flag("target", str, DEFAULT_TARGET, "NAME@VERSION", "version of llm-d that is written for"),
    Flag(
        "baseline",
        str,
        None,
        "ARM",
        "what the strategy is compared with (default: that of its file)",
    ),
)
EVIDENCE = (
    Flag("reports", str, None, "DIR", "measured reports, as SCENE/ARM/RUN.yaml below the folder"),
    *seed_options.seed_flags(f"of the dry run; default: {NUM_SEEDS}"),
    Flag(
        "survival-seeds",
        cli.at_least(3),
        NUM_SURVIVAL_SEEDS,
        "N",
        "seeds of the table of what the gain survives",
    ),
    Flag("num-requests", cli.at_least(1), None, "N", "requests in place of the workloads' numbers"),
)
_CONCERNS = Flag(
    "concerns", str, None, "A,B,…", "rows of the page, by the names in Map C (default: all of them)"
)
_SWITCHES = {
    "overwrite": "make stages again that a person has edited",
    "no-cache": "compile again instead of using programs kept from earlier runs",
}
_DRY = {"dry-run": "make the reports by simulation; everything that follows says so"}
_EXAMPLES = {
    "maps": "iter13_class_lead@found --output out/promotion",
    "translate": "--output out/promotion",
    "hypothesise": "--output out/promotion",
    "tests": "--output out/promotion",
    "validate": "--output out/promotion --dry-run\n--output out/promotion --reports results",
    "document": "--output out/promotion",
    "bundle": "--output out/promotion",
    "gate": "1 --output out/promotion",
    "approve": '1 --output out/promotion --by "A. Reviewer" --reason "The Go code is what was simulated."',
    "reject": '2 --output out/promotion --by "A. Reviewer" --reason "No hypothesis for two replicas."',
    "status": "--output out/promotion",
    "survival": "iter13_class_lead@found --output survival.md\n"
    "iter13_class_lead@found iter21_intent@found --output survival.md",
}
_FORM = "[LABEL=]STRATEGY[@POINT][:NAME=VALUE…]"


def parser_of(action: str) -> Parser:
    """The parser of one action."""
    about = ACTIONS[action]
    parser = Parser(
        prog=f"python -m {NAME} {action}",
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="examples:\n"
        + "\n".join(f"  %(prog)s {line}" for line in _EXAMPLES[action].split("\n")),
    )
    if action in STAGE_ACTIONS or action == "survival":
        if action == "survival":
            parser.add_argument("strategies", metavar="STRATEGY", nargs="*", help=_FORM)
        else:
            parser.add_argument("strategy", metavar="STRATEGY", nargs="?", help=_FORM)
        parser.add_flags("promotion", _OF)
    if action in ("gate", "approve", "reject"):
        parser.add_argument("gate", metavar="GATE", nargs="?", help="1, 2 or 3")
    if action == "survival":
        page = Flag(
            "output", str, None, "PATH", "page to write, .md; its numbers go beside it as .json"
        )
        parser.add_flags("output", (page,))
        parser.add_flags("concerns", (_CONCERNS,))
        parser.add_flags(
            "runs", (*seed_options.seed_flags(f"default: {NUM_SURVIVAL_SEEDS}"), EVIDENCE[-1])
        )
        parser.add_switches("switches", {"no-cache": _SWITCHES["no-cache"]})
        return parser
    parser.add_flags("output", (_OUTPUT,))
    if action == "validate":
        parser.add_flags("evidence", EVIDENCE)
    if action in ("approve", "reject"):
        parser.add_flags("decision", _DECISION)
    if action in STAGE_ACTIONS:
        switches = _DRY | _SWITCHES if action == "validate" else _SWITCHES
        parser.add_switches("switches", switches)
    return parser


_DECISION = (
    Flag("by", str, None, "NAME", "who decides"),
    Flag("reason", str, None, "TEXT", "why"),
)


def whole_parser(description: str, examples: str) -> Parser:
    """The parser of a promotion from its first stage on."""
    width = max(map(len, ACTIONS)) + 2
    actions = "".join(f"  {name:<{width}}{text}\n" for name, text in ACTIONS.items())
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s STRATEGY[@POINT] [options]\n       %(prog)s ACTION [options]",
        description=description,
        epilog=f"actions, each with a --help of its own:\n{actions}\n{examples}",
    )
    parser.add_argument("strategy", metavar="STRATEGY", nargs="?", help=_FORM)
    parser.add_flags("promotion", _OF)
    parser.add_flags("output", (_OUTPUT,))
    parser.add_flags("evidence", EVIDENCE)
    parser.add_switches("switches", _DRY | _SWITCHES)
    return parser


# --- what they are about --------------------------------------------------------------------------


def folder_of(given: Mapping[str, Any]) -> Path:
    """The folder of the promotion."""
    folder = Path(given.get("output", FOLDER))
    cli.check_writable(folder, is_folder=True)
    return folder


def promotion_of(given: Mapping[str, Any], store: PromotionStore) -> Promotion:
    """What is promoted: what is given, and else what the folder is of; the folder is begun or compared."""
    before = store.identity() if store.is_begun else {}
    strategy = given.get("strategy") or before.get("strategy")
    if strategy is None:
        raise ConfigError(
            "no strategy is given; name one of the library, a .yaml file or the .json of a search, as in "
            f"`python -m {NAME} iter13_class_lead@found`"
        )
    if strategy in ACTIONS:
        raise ConfigError(f"{strategy} is an action; write it first, before the strategy")
    promotion = make_promotion(
        strategy,
        given.get("baseline") or before.get("baseline"),
        given.get("target") or before.get("target") or DEFAULT_TARGET,
    )
    store.begin(identity_of(promotion))
    return promotion


def make_promotion(given: str, baseline: str | None, target: str) -> Promotion:
    """Of texts; the baseline is that of the strategy's file if none is given."""
    from sweeps.promote.promotion import Promotion
    from sweeps.strategies.arms import arm_of

    arm = arm_of(given)
    usual = arm.strategy.baseline if arm.strategy is not None else USUAL_BASELINE
    other = arm_of(baseline or usual)
    if target.count("@") != 1 or not all(target.split("@")):
        raise ConfigError(f"--target: {target!r} is not NAME@VERSION, such as {DEFAULT_TARGET}")
    return Promotion(given, arm, other, target)


def identity_of(promotion: Promotion) -> dict[str, Any]:
    """What a promotion's artifacts depend on, by its name in words."""
    from blis_jax.files.resuming import fingerprint
    from sweeps.runs.measured import key_of

    return {
        "strategy": promotion.given,
        "baseline": promotion.baseline.name,
        "target": promotion.target,
        "content of the strategy": key_of(promotion.arm.config),
        "content of the baseline": key_of(promotion.baseline.config),
        "content of policy files": fingerprint(policy_files(promotion)),
    }


def policy_files(promotion: Promotion) -> dict[str, str]:
    """The texts of users' files that the arms name, by the file's name."""
    import dataclasses
    import re

    found = {}
    for arm in (promotion.arm, promotion.baseline):
        for field in dataclasses.fields(arm.config):
            value = getattr(arm.config, field.name)
            for path in re.findall(r"([^\s,]+\.py):", value) if isinstance(value, str) else ():
                found[Path(path).name] = input_files.read_text(Path(path), "a policy")
    return found


def gate_of(given: Mapping[str, Any]) -> int:
    """The gate that an action is about."""
    text = str(given.get("gate", ""))
    if text not in ("1", "2", "3"):
        raise ConfigError(
            f"gate {text!r} is unknown; give 1, 2 or 3"
            if text
            else "no gate is given; give 1, 2 or 3"
        )
    return int(text)


def signed(given: Mapping[str, Any]) -> tuple[str, str]:
    """Who decides, and why."""
    for name in ("by", "reason"):
        if not given.get(name):
            raise ConfigError(
                f"--{name} is missing; a decision has a name (--by) and a reason (--reason)"
            )
    return given["by"], given["reason"]


def evidence_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """What the evidence is made of, as plain values; reports as their texts."""
    if "dry_run" in given and "reports" in given:
        raise ConfigError("--reports: --dry-run makes the reports by simulation; give one of them")
    common: dict[str, Any] = {
        "survival_seeds": given.get("survival_seeds", NUM_SURVIVAL_SEEDS),
        "num_requests": given.get("num_requests"),
    }
    if "dry_run" in given:
        return common | {"seeds": list(seed_options.seeds_of(given, NUM_SEEDS, "reference"))}
    if "reports" not in given:
        return {}
    return common | {"reports": reports_in(Path(given["reports"]))}


def reports_in(folder: Path) -> dict[str, str]:
    """The texts of all reports below a folder, by path."""
    if not folder.is_dir():
        raise ConfigError(
            f"--reports: {folder} is not a folder; give one with SCENE/ARM/RUN.yaml below it"
        )
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".yaml", ".yml", ".json"):
            found[path.relative_to(folder).as_posix()] = input_files.read_text(
                path, "a benchmark report"
            )
    if not found:
        raise ConfigError(
            f"--reports: {folder} holds no .yaml or .json file; reports are SCENE/ARM/RUN.yaml"
        )
    return found
