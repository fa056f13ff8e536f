"""What all datasets of results have in common: provenance, kind and format, outcomes, units.

Format 2 names the kind of every dataset and gives its outcomes CF's `flag_values` and `flag_meanings`. Format 1 had no
format number; `upgraded` converts such a dataset to format 2 when it is read.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from blis_jax.cluster.config import PROFILE
from blis_jax.core.outcome import Outcome
from blis_jax.files.atomic_write import version_of
from blis_jax.files.formats import number_of, refuse_newer
from blis_jax.lazy import xarray as xr

FORMAT = number_of("dataset")
# kinds; further ones stand beside what writes them
RUNS, REQUESTS, SWEEP = (
    "runs",
    "requests",
    "sweep",
)
NOT_RUN = -1  # code beside the outcomes, of a run that was not made
_UNITS = {
    "_ms": "ms", "_us": "us", "_per_s": "1/s", "_per_sec": "1/s", "_rps": "1/s", "_s": "s",
    "_seconds": "s",
}  # fmt: skip


@dataclass(frozen=True)
class Provenance:
    """The inputs that a saved result must name so that it can be reproduced."""

    spec_text: str = ""  # the workload specification
    policies: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    seeds: Sequence[int] = ()
    profile: str = PROFILE

    def attributes(self) -> dict[str, str]:
        """Return the attributes of a Dataset; structured ones are JSON."""
        now = datetime.datetime.now(datetime.UTC)
        return {
            "package": "blis-jax",
            "package_version": version_of("blis-jax"),
            "jax_version": version_of("jax"),
            "profile": self.profile,
            "spec": self.spec_text,
            "policies": json.dumps(dict(self.policies), sort_keys=True),
            "config": json.dumps(dict(self.config), sort_keys=True),
            "seeds": json.dumps([int(seed) for seed in self.seeds]),
            "created": now.isoformat(timespec="seconds"),
        }


def new_dataset(
    kind: str, provenance: Provenance, coords: Mapping[str, Any], about: Mapping[str, Any]
) -> xr.Dataset:
    """Return a dataset without variables; the attributes `about` are added to the provenance's, or replace them."""
    attributes = {"kind": kind, "format": FORMAT, **provenance.attributes(), **about}
    return xr.Dataset(coords=dict(coords), attrs=attributes)


def outcome_attributes(**further: int) -> dict[str, Any]:
    """Return the attributes that explain a variable of outcomes, which may have `further` codes, given by name."""
    codes = further | {outcome.name.lower(): int(outcome) for outcome in Outcome}
    return {"flag_values": list(codes.values()), "flag_meanings": " ".join(codes)}


def unit_of(name: str) -> str:
    """Return the unit in the ending of a variable's name; 1 if there is none."""
    return next((unit for end, unit in _UNITS.items() if name.endswith(end)), "1")


def upgraded(dataset: xr.Dataset) -> xr.Dataset:
    """Return a dataset, converted to the present format if its format is earlier.

    Raises:
        ConfigError: the dataset's format is later than the present one.
    """
    attributes = dataset.attrs
    refuse_newer(attributes.get("format"), "dataset", "this file")
    if "format" in attributes or "package_version" not in attributes:
        return dataset
    attributes["format"] = FORMAT
    kind = SWEEP if "fingerprint" in dataset.coords else REQUESTS
    attributes.setdefault("kind", RUNS if "slo_targets" in attributes and kind != SWEEP else kind)
    if "outcome" in dataset.variables:
        of_outcome = dataset["outcome"].attrs
        first = of_outcome.pop("first_flag", 0)
        names = str(of_outcome.get("flag_meanings", "")).split()
        of_outcome.setdefault("flag_values", np.arange(first, first + len(names)).tolist())
    return dataset
