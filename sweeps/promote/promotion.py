"""Hold what is promoted where, and what the stages of a promotion hand to each other.

A stage is a pure function from a `Promotion` and the files of earlier stages to files: texts by path, relative
to the output folder. Only `sweeps.promote.store` writes them.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.files.atomic_write import fingerprint
from sweeps.promote import DEFAULT_TARGET
from sweeps.strategies.arms import Arm, arm_of, key_of
from sweeps.strategies.file import FOLDER, Strategy
from sweeps.strategies.space import space_of

Files = Mapping[str, str]  # path below the output folder, with "/" -> text that ends with a newline
Severity = Literal["CRITICAL", "IMPORTANT", "SUGGESTION"]
Evidence = Literal["simulated", "measured"]
USUAL_BASELINE = "iter00_baseline"
BASELINE, CONTROL, TREATMENT = "baseline", "control", "treatment"
ARMS = (BASELINE, CONTROL, TREATMENT)


@dataclass(frozen=True)
class Promotion:
    """Hold a strategy, what it is compared with, and the version of llm-d that it is written for."""

    given: str  # STRATEGY[@POINT], as on the command line
    arm: Arm
    baseline: Arm
    target: str  # NAME@VERSION, a folder of sweeps/promote/targets

    @property
    def name(self) -> str:
        """Return the strategy's name, of bare settings that of their arm."""
        return self.arm.name if self.arm.strategy is None else self.arm.strategy.name


@dataclass(frozen=True)
class GeneratedPlugin:
    """Describe a plugin that the promotion brings along, as the compiler wrote it."""

    kind: str  # scorer, admission, routing or order
    simulated_name: str
    type_name: str  # in the target's configuration
    package_path: str  # below the target's module
    parameters: Mapping[str, float]  # as the strategy has them
    signals: tuple[str, ...]  # of the simulator, such as snapshots.queue_depth
    stability: (
        str  # Alpha, Beta, Stable, or another word where the version of the target has no levels
    )

    @property
    def level(self) -> str:
        """Return Alpha, Beta or Stable; a version of the target without levels takes all for Beta."""
        return self.stability if self.stability in ("Alpha", "Stable") else "Beta"


@dataclass(frozen=True)
class Finding:
    """Hold what a rule checker found in a file; a CRITICAL one keeps a gate closed."""

    severity: Severity
    rule: str  # kebab-case, the same in every run
    path: str  # of the file, relative to the output folder
    message: str  # one sentence: what is there, what is allowed, the likely fix


class NotMappedError(ConfigError):
    """A parameter, signal or primitive that the target cannot express; the sentence ends with a proposal."""


def make_promotion(given: str, baseline: str | None, target: str) -> Promotion:
    """Make a promotion of texts; without a baseline it has that of the strategy's file."""
    arm = arm_of(given)
    usual = arm.strategy.baseline if arm.strategy is not None else USUAL_BASELINE
    other = arm_of(baseline or usual)
    if target.count("@") != 1 or not all(target.split("@")):
        raise ConfigError(f"--target: {target!r} is not NAME@VERSION, such as {DEFAULT_TARGET}")
    return Promotion(given, arm, other, target)


def identity_of(promotion: Promotion) -> dict[str, Any]:
    """Return what a promotion's artifacts depend on, by its name in words."""
    return {
        "strategy": promotion.given,
        "baseline": promotion.baseline.name,
        "target": promotion.target,
        "content of the strategy": key_of(promotion.arm.config),
        "content of the baseline": key_of(promotion.baseline.config),
        "content of policy files": fingerprint(policy_files(promotion)),
    }


def policy_files(promotion: Promotion) -> dict[str, str]:
    """Return the texts of users' files that the arms name, by the file's name."""
    files = {}
    for arm in (promotion.arm, promotion.baseline):
        for field in dataclasses.fields(arm.config):
            value = getattr(arm.config, field.name)
            for path in re.findall(r"([^\s,]+\.py):", value) if isinstance(value, str) else ():
                files[Path(path).name] = input_files.read_text(Path(path), "a policy")
    return files


def place_of(promotion: Promotion, setting: str) -> str:
    """Return file and line of a parameter or setting; the command line if the file has it not."""
    strategy = promotion.arm.strategy
    if strategy is None:
        return f"strategy {promotion.given}"
    text = _text(strategy)
    names = [one.name for one in space_of(strategy).dimensions if one.target == setting]
    for word in (setting, *names, setting.rpartition(".")[2]):
        match = re.search(rf"(?m)^.*\b{re.escape(word)}\b\s*[:,}}].*$", text)
        if match:
            return f"{strategy.source}, line {text[: match.start()].count(chr(10)) + 1}"
    return f"strategy {promotion.given}"


def not_mapped(promotion: Promotion, setting: str, problem: str, proposal: str) -> NotMappedError:
    """Return the sentence about a setting that the target cannot express."""
    place = place_of(promotion, setting)
    return NotMappedError(f"{setting} ({place}): {problem}; proposal: {proposal}")


def _text(strategy: Strategy) -> str:
    if strategy.folder is not None:
        return (strategy.folder / strategy.source).read_text(encoding="utf-8")
    file = resources.files("sweeps") / FOLDER / strategy.source
    return file.read_text(encoding="utf-8") if file.is_file() else ""


class GateClosedError(ConfigError):
    """A stage that waits behind a gate, or a decision that a gate does not take; commands end with exit code 3."""
