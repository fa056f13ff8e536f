"""The baseline scenarios of llm-d-benchmark at the pinned commit, and the workloads that stand for their profiles."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.workload.spec import WorkloadSpec, parse_spec


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class BaselineScenario(_Part):
    """A scenario file, with the harness and profile that it names."""

    name: str  # path below the folder, without .yaml
    harness: str
    profile: str
    workload: str  # in sweeps/workloads; stands for the profile in the simulator
    instead: str = ""  # what is run where the profile cannot be


class Inventory(_Part):
    """All scenarios of the pinned commit."""

    repository: str
    commit: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    folder: str
    scenarios: tuple[BaselineScenario, ...]


@functools.cache
def inventory() -> Inventory:
    """The pinned inventory.

    Raises:
        ConfigError: the file is not of the form.
    """
    file = resources.files("sweeps.promote.hypotheses") / "data" / "scenarios.yaml"
    try:
        return Inventory.model_validate(
            read_mapping(file.read_text(encoding="utf-8"), "scenarios.yaml")
        )
    except ValidationError as error:
        raise ConfigError(f"scenarios.yaml: {sentence(error)}") from None


@functools.cache
def scenario_workload(name: str) -> WorkloadSpec:
    """The workload that stands for the profile of a scenario."""
    file = resources.files("sweeps") / "workloads" / f"{name}.yaml"
    return parse_spec(file.read_text(encoding="utf-8"), f"{name}.yaml")
