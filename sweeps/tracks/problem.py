"""The problem of a track as data: question, workload, constraints, criteria, earlier findings.

`problem.yaml` of a track's folder has it; `problem.md` is rendered from it and the measured baseline.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

import jinja2
from pydantic import Field, ValidationError, field_validator, model_validator

from blis_jax.cluster.config import FIELDS
from blis_jax.errors import ConfigError, closest
from blis_jax.files.input_files import read_text
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.statistics.intervals import CONFIDENCE
from blis_jax.statistics.paired import fewest_for_verdict
from blis_jax.workload.spec import WorkloadSpec, load_spec, override
from sweeps.claims.grammar import Claim, parse_claim
from sweeps.runs.requests import list_workloads, load_workload
from sweeps.strategies.moved import is_setting
from sweeps.strategies.parts import Bounds, ClosedPart, Text


def render(name: str, **values: object) -> str:
    """Return a rendered template of the tracks; a missing value is an error."""
    return rendered("sweeps.tracks", name, {"signed": signed, "plain": plain}, values)


def rendered(
    package: str, name: str, filters: Mapping[str, Callable[..., str]], values: Mapping[str, object]
) -> str:
    """Return a rendered template of the folder `templates` of a package; `cell` is among its filters."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader(package, "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # Markdown, not HTML
    )
    environment.filters |= {"cell": cell, **filters}
    return environment.get_template(name).render(**values)


def cell(text: str) -> str:
    """Return a text on one line, escaped so that it fits into a table's cell."""
    return " ".join(str(text).split()).replace("|", "\\|")


def signed(value: float | None, decimals: int = 1) -> str:
    """Return a number with its sign, such as `−66.5`; a dash for None."""
    if value is None:
        return "–"
    text = f"{abs(value):.{decimals}f}"
    is_zero = float(text) == 0
    return text if is_zero else f"{'−' if value < 0 else '+'}{text}"


def plain(value: float | None, decimals: int = 1) -> str:
    """Return a number with separated thousands; a dash for None."""
    if value is None:
        return "–"
    return f"{value:,.{decimals}f}".replace("-", "−")


FOLDER = "tracks"
FILE = "problem.yaml"
MAIN = "main"  # the condition that every row has
People = Literal["people", "seeds", "verdict", "mechanism", "sensitivity"]


class Condition(ClosedPart):
    """Other conditions, for both arms, under which a criterion is judged."""

    text: Text
    workload: Text | None = None  # None: the track's
    rate: Annotated[float, Field(gt=0)] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    warm_up_s: Annotated[float, Field(ge=0)] | None = None  # arrivals left out at the beginning
    cool_down_s: Annotated[float, Field(ge=0)] | None = None  # and before the last arrival

    @property
    def window(self) -> str | None:
        """Return the measured arrivals in the form of `--window`; None for the workload's own."""
        spans = self.warm_up_s, self.cool_down_s
        return None if spans == (None, None) else ",".join(repr(span or 0.0) for span in spans)

    @field_validator("settings")
    @classmethod
    def _known(cls, settings: dict[str, Any]) -> dict[str, Any]:
        for name in settings:
            if not is_setting(name):
                raise ValueError(f"{name} is no setting{closest(name, FIELDS)}")
        return settings


class Criterion(ClosedPart):
    """A goal for a strategy: a claim to be measured, or a judgement that others must make.

    `each_class` judges the claim for all requests together and for every class. `against: itself` compares
    the strategy in `condition` with the same strategy in the main one.
    """

    name: Text
    text: Text
    protocol: Literal["registered", "later", "added"]
    goal: Text | None = None
    each_class: bool = False
    condition: Text = MAIN
    against: Literal["baseline", "itself"] = "baseline"
    needs: People | None = None

    @model_validator(mode="after")
    def _one_of_both(self) -> Criterion:
        if (self.goal is None) == (self.needs is None):
            raise ValueError("give either goal or needs")
        if self.goal is not None:
            try:
                claim = parse_claim(self.goal)
            except ConfigError as error:
                raise ValueError(str(error)) from None
            if claim.shape != "region":
                raise ValueError(f"{self.goal!r} is about several values of a setting")
            if self.each_class and "[" in self.goal:
                raise ValueError("each_class is judged for every class; leave [class] out")
        if self.against == "itself" and self.condition == MAIN:
            raise ValueError("against itself needs another condition than main")
        return self

    @functools.cached_property
    def claim(self) -> Claim | None:
        """Return the criterion's goal as a claim; None if it has none."""
        return parse_claim(self.goal) if self.goal is not None else None


class TrackConstraint(ClosedPart):
    """A constraint on every strategy; checked where it can be."""

    text: Text
    settings: dict[str, Bounds] = Field(default_factory=dict)
    needs: Literal["simulator", "people", "report", "parameters"] | None = None


class PriorFinding(ClosedPart):
    """An earlier finding, and its status here."""

    text: Text
    remark: str = ""


class Problem(ClosedPart):
    """A track's problem."""

    name: Text
    question: Text
    workload: Text = "mixed"
    by_design: str = ""  # why this workload
    rate: Annotated[float, Field(gt=0)] | None = None
    baseline: Text = "iter00_baseline"
    seeds: Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)] = (42, 43, 44)
    rng: Literal["reference", "jax"] = "reference"
    objective: Text = "ttft_p99_ms[critical]"
    stop_after: Annotated[int, Field(ge=1)] = 3  # null iterations in a row
    constraints: tuple[TrackConstraint, ...] = ()
    conditions: dict[str, Condition] = Field(default_factory=dict)
    criteria: tuple[Criterion, ...] = ()
    protocol: tuple[Text, ...] = ()
    prior_findings: tuple[PriorFinding, ...] = ()
    opportunities: tuple[Text, ...] = ()
    folder: Path | None = None  # where relative paths begin

    @model_validator(mode="after")
    def _conditions_exist(self) -> Problem:
        for criterion in self.criteria:
            if criterion.condition not in (MAIN, *self.conditions):
                known = ", ".join((MAIN, *self.conditions))
                raise ValueError(
                    f"criteria: {criterion.name}: condition {criterion.condition!r} is unknown; "
                    f"there are {known}"
                )
        return self

    @property
    def seeds_for_verdicts(self) -> tuple[int, ...]:
        """Return the seeds, with as many that follow as a verdict needs beside them."""
        num_missing = max(fewest_for_verdict(CONFIDENCE) - len(self.seeds), 0)
        following = max(self.seeds) + 1
        return (*self.seeds, *range(following, following + num_missing))

    def criteria_content(self) -> Any:
        """Return the parts of the problem that decide its judgements, as plain data."""
        fields = {"criteria", "conditions", "constraints", "objective"}
        return self.model_dump(mode="json", include=fields)


def parse_problem(text: str, source: str, folder: Path | None = None) -> Problem:
    """Return the problem in a YAML text, checked; `source` names the text in errors."""
    data = read_mapping(text, source)
    data.pop("folder", None)
    try:
        return Problem.model_validate({**data, "folder": folder})
    except ValidationError as error:
        raise ConfigError(f"{source}: {sentence(error)}") from None


def list_problems() -> tuple[str, ...]:
    """Return the names of the problems that come with the package."""
    folder = resources.files("sweeps") / FOLDER
    return tuple(sorted(entry.name for entry in folder.iterdir() if (entry / FILE).is_file()))


def load_problem(name_or_path: str) -> Problem:
    """Return a problem of the package, or that of a track's folder or file.

    Raises:
        ConfigError: there is none of that name, or it is malformed.
    """
    if name_or_path in list_problems():
        file = resources.files("sweeps") / FOLDER / name_or_path / FILE
        return parse_problem(file.read_text(encoding="utf-8"), f"{name_or_path}/{FILE}")

    path = Path(name_or_path)
    if path.is_dir():
        path /= FILE
    elif path.suffix not in (".yaml", ".yml"):
        names = list_problems()
        raise ConfigError(
            f"problem {name_or_path!r} is unknown; use one of {', '.join(names)}, a track's folder, "
            f"or a .yaml file{closest(name_or_path, names)}"
        )
    return parse_problem(read_text(path, "a problem in YAML"), str(path), path.parent)


def workload_named(
    name_or_path: str, folder: Path | None = None, rate: float | None = None
) -> WorkloadSpec:
    """Return a workload by its name, or from a file here or in `folder`; at another rate if one is given.

    Raises:
        ConfigError: there is none of that name.
    """
    if name_or_path in list_workloads():
        spec = load_workload(name_or_path)
    elif name_or_path.endswith((".yaml", ".yml")):
        beside = (folder or Path()) / name_or_path
        spec = load_spec(beside if beside.is_file() else Path(name_or_path), None)
    else:
        names = list_workloads()
        raise ConfigError(
            f"workload {name_or_path!r} is unknown; use one of {', '.join(names)}, or a .yaml file"
            f"{closest(name_or_path, names)}"
        )
    return spec if rate is None else override(spec, aggregate_rate=rate)


def to_markdown(problem: Problem, baseline: Mapping[str, Any] | None) -> str:
    """Return `problem.md`: the problem in words, with the measured figures that the criteria refer to."""
    return render("problem.md.j2", problem=problem, baseline=baseline)
