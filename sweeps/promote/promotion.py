"""What is promoted where, and what the stages of a promotion hand to each other.

A stage is a pure function from a `Promotion` and the files of earlier stages to files: texts by path, relative
to the output folder. Only `sweeps.promote.store` writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from blis_jax.errors import ConfigError
from sweeps.strategies.arms import Arm

Files = Mapping[str, str]  # path below the output folder, with "/" -> text that ends with a newline
Severity = Literal["CRITICAL", "IMPORTANT", "SUGGESTION"]
Evidence = Literal["simulated", "measured"]


@dataclass(frozen=True)
class Promotion:
    """A strategy, what it is compared with, and the version of llm-d that it is written for."""

    given: str  # STRATEGY[@POINT], as on the command line
    arm: Arm
    baseline: Arm
    target: str  # NAME@VERSION, a folder of sweeps/promote/targets


@dataclass(frozen=True)
class Finding:
    """What a rule checker found in a file; a CRITICAL one keeps a gate closed."""

    severity: Severity
    rule: str  # kebab-case, the same in every run
    path: str  # of the file, relative to the output folder
    message: str  # one sentence: what is there, what is allowed, the likely fix


class NotMappedError(ConfigError):
    """A parameter, signal or primitive that the target cannot express; the sentence ends with a proposal."""
