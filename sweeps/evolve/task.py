"""TASK.yaml: the fixed description of what a search looks for; see docs/how-to/evolve.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from blis_jax.commands.options import trace_flags
from blis_jax.commands.options.trace_flags import StudyTrace
from blis_jax.errors import ConfigError, as_option, closest
from blis_jax.files.input_files import read_text
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.metrics.metric import names_in
from blis_jax.metrics.scalars import lookup
from blis_jax.traces.source import STREAM
from sweeps.claims.grammar import known_metric, our_name
from sweeps.runs.experiment import Experiment
from sweeps.runs.requests import StudyRequests, check_seeds, workload_from
from sweeps.search.request_schema import TraceKeys
from sweeps.strategies.moved import config_from_arguments
from sweeps.strategies.parts import ClosedPart, Number, SuccessCriterion, Text

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1)]
USUAL_LIMIT_S = 600.0
SCORED = "weighted"  # the router of the package that has scorers
_ELSEWHERE = {
    "--routing-policy": "baseline", "--num-requests": "num_requests", "--profile": "profile", "--revision": "profile",
}  # fmt: skip


class Stage1(ClosedPart):
    """The first stage: few seeds, and the score in % that a program must reach to run on all seeds."""

    seeds: Seeds
    pass_: Number = Field(0.0, alias="pass")


class Guard(SuccessCriterion):
    """A criterion that a program must keep; a breach takes `weight` × its size off the score."""

    weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0


class TaskFile(ClosedPart):
    """The fields of TASK.yaml."""

    name: Text
    profile: Literal["blis-2026-02", "blis-2026-08"] = "blis-2026-02"
    cluster: dict[str, Any] = Field(default_factory=dict)  # options of `blis-jax run`
    baseline: Text = "weighted"  # a router by name, FILE.py:NAME, or a Go file
    workloads: tuple[str | dict[str, Any], ...] = ()
    num_requests: Annotated[int, Field(ge=1)] | None = None
    traces: tuple[TraceKeys, ...] = ()
    seeds: Seeds  # that the search uses; windows of traces that are cut into them
    score: dict[Text, Annotated[float, Field(gt=0, allow_inf_nan=False)]]
    guards: tuple[Guard, ...] = ()
    stage1: Stage1 | None = None
    limit_s: Annotated[float, Field(gt=0)] = USUAL_LIMIT_S  # for one program
    failure_score: Number = -1000.0
    # each by itself, also where it has a form as a table of operations
    compile_programs: bool = False
    published: Number | None = None  # the score that the search tells

    @model_validator(mode="after")
    def _whole(self) -> TaskFile:
        if bool(self.workloads) == bool(self.traces):
            raise ValueError("give either workloads or traces")
        if not self.score:
            raise ValueError("score: give metrics with weights, such as {e2e_mean_ms: 0.5}")
        return self


@dataclass(frozen=True)
class Task:
    """A checked TASK.yaml.

    Attributes:
        file: the fields of the file.
        path: the file's path; paths in the file are relative to its folder.
        base: the cluster, with the default router of the command line.
        requests: the requests of each workload or trace, on the search's seeds.
    """

    file: TaskFile
    path: Path
    base: ClusterConfig
    requests: tuple[StudyRequests, ...]

    @cached_property
    def metrics(self) -> dict[str, float]:
        """Return the weights of the score's metrics, by their current names."""
        return {our_name(name): weight for name, weight in self.file.score.items()}

    @property
    def is_windowed(self) -> bool:
        """Return whether the runs are windows of traces."""
        return any(
            requests.trace is not None and requests.trace.num_windows for requests in self.requests
        )

    @property
    def run_word(self) -> str:
        """Return the word for the number that identifies a run: `seed` or `window`."""
        return "window" if self.is_windowed else "seed"

    def names(self, requests: StudyRequests) -> tuple[str, ...]:
        """Return the metrics compared on a workload: the score's, also by class, and the guards'."""
        of_class = names_in(
            [metric for metric in self.metrics if lookup(metric)[1] is None], requests.classes
        )
        guarded = [guard.claim.metric for guard in self.guards(requests)]
        return tuple(dict.fromkeys((*self.metrics, *of_class, *guarded)))

    def guards(self, requests: StudyRequests) -> list[Guard]:
        """Return the guards that apply to a workload: those of all requests and those of its classes."""
        has = (None, *requests.classes)
        return [guard for guard in self.file.guards if lookup(our_name(guard.metric))[1] in has]

    def experiments(self, seeds: tuple[int, ...]) -> list[Experiment]:
        """Return one experiment for each workload, on these seeds.

        Raises:
            ConfigError: the workloads do not have these seeds or windows.
        """
        made = []
        for requests in self.requests:
            self.check_runs(requests, seeds)
            made.append(Experiment(replace(requests, seeds=seeds), self.names(requests)))
        return made

    def check_runs(self, requests: StudyRequests, seeds: tuple[int, ...]) -> None:
        """Refuse seeds or windows that the workload does not have."""
        check_seeds(seeds, requests.stream)
        most = requests.trace.num_windows if requests.trace is not None else None
        wrong = [seed for seed in seeds if most is not None and not 1 <= seed <= most]
        if wrong:
            raise ConfigError(
                f"{self.path.name}: seeds: {requests.name} has windows 1 to {most}, and no {wrong[0]}"
            )


def load_task(path: str | Path) -> Task:
    """Read and check a TASK.yaml.

    Raises:
        ConfigError: the file cannot be read, or an entry is wrong; the sentence says which.
    """
    path = Path(path)
    where = path.name
    data = read_mapping(read_text(path, "a task in YAML"), where)
    known = [field.alias or name for name, field in TaskFile.model_fields.items()]
    for key in data:
        if key not in known:
            raise ConfigError(
                f"{where}: {key}: the key is unknown; use {', '.join(known)}{closest(str(key), known)}"
            )
    try:
        file = TaskFile.model_validate(data)
    except ValidationError as error:
        raise ConfigError(f"{where}: {sentence(error)}") from None
    _check_metrics(file, where)
    base = _cluster(file, where)
    task = Task(file, path, base, tuple(_requests(file, where, path.parent)))
    _check_uses(task, where)
    return task


def _check_metrics(file: TaskFile, where: str) -> None:
    directions = set()
    for name in file.score:
        try:
            directions.add(known_metric(name).direction)
        except ConfigError as error:
            raise ConfigError(f"{where}: score.{name}: {error}") from None
    if len(directions) > 1:
        raise ConfigError(
            f"{where}: score: of {', '.join(file.score)} some are better low and some high, so their sum has no "
            "meaning; give one kind, and the others as guards"
        )
    for place, guard in enumerate(file.guards):
        try:
            known_metric(guard.metric)
        except ConfigError as error:
            raise ConfigError(f"{where}: guards[{place}].metric: {error}") from None


def _cluster(file: TaskFile, where: str) -> ClusterConfig:
    words = []
    for name, value in file.cluster.items():
        flag = as_option(str(name))
        if flag in _ELSEWHERE:
            raise ConfigError(f"{where}: cluster.{name}: give it as {_ELSEWHERE[flag]}")
        if value is not False:
            words.append(flag if value is True else f"{flag}={_as_word(value)}")
    try:
        return config_from_arguments(words, revision=file.profile, routing_policy=SCORED)
    except ConfigError as error:
        raise ConfigError(f"{where}: cluster: {error}") from None


def _as_word(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _requests(file: TaskFile, where: str, folder: Path) -> Iterator[StudyRequests]:
    for place, workload in enumerate(file.workloads):
        spec = workload_from(workload, f"{where}: workloads[{place}]", folder, file.num_requests)
        name = (
            Path(workload).stem.removeprefix("workload_")
            if isinstance(workload, str)
            else f"workload {place + 1}"
        )
        yield StudyRequests(spec, file.seeds, "reference", name)
    for place, keys in enumerate(file.traces):
        options = keys.model_dump(exclude_none=True, by_alias=True)
        beside = folder / keys.trace
        options["trace"] = str(beside if beside.exists() else keys.trace)
        source = trace_flags.study_source(StudyTrace.of(options), where, is_quiet=True)
        assert source is not None, place
        yield StudyRequests(source, file.seeds, STREAM, Path(keys.trace).stem)


def _check_uses(task: Task, where: str) -> None:
    """Refuse seeds that do not exist, a first stage on other seeds, and guards of classes that no workload has."""
    for requests in task.requests:
        task.check_runs(requests, task.file.seeds)
        if requests.trace is not None and len(task.requests) > 1:
            is_cut = requests.trace.num_windows is not None
            if is_cut != task.is_windowed:
                raise ConfigError(f"{where}: traces: give trace_windows to all of them or to none")
    first = task.file.stage1
    if first is not None and not set(first.seeds) <= set(task.file.seeds):
        raise ConfigError(f"{where}: stage1.seeds: all of them must be among seeds")
    if first is not None and task.file.failure_score >= first.pass_:
        raise ConfigError(
            f"{where}: failure_score: got {task.file.failure_score:g}, allowed is below what stage 1 passes, "
            f"{first.pass_:g}"
        )
    classes = {name for requests in task.requests for name in requests.classes}
    for place, guard in enumerate(task.file.guards):
        of = lookup(our_name(guard.metric))[1]
        if of is not None and of not in classes:
            raise ConfigError(
                f"{where}: guards[{place}].metric: no request is {of}; the classes are {', '.join(sorted(classes))}"
            )


def plain_task(task: Task) -> Mapping[str, Any]:
    """Return the file's content as plain data, for records."""
    return task.file.model_dump(mode="json", by_alias=True)
