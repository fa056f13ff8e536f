"""What goes into and comes out of `blis-jax evaluate`, as models: they check requests and make the schema."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic.json_schema import models_json_schema

from blis_jax.errors import ConfigError, closest
from blis_jax.files.formats import number_of
from blis_jax.files.strict_yaml import sentence
from sweeps.strategies.parts import ClosedPart, Limits

VERSION = number_of("evaluation")
STRATEGY_KEYS = ("strategy", "point", "parameters", "settings")
Count = Annotated[int, Field(ge=1)]


class _Part(ClosedPart):
    model_config = ConfigDict(strict=True)


class TraceKeys(_Part):
    """A recorded trace and how it is read; the keys are the commands' options."""

    trace: str = Field(description="path of the trace; a folder for ServeGen")
    trace_format: str | None = Field(None, description="format of the trace; detected if left out")
    trace_header: str | None = Field(None, description="YAML header of a TraceV2 trace")
    trace_block_size: Count | None = Field(
        None, description="tokens that one hash id of a Mooncake trace stands for"
    )
    trace_windows: Count | None = Field(None, description="equal spans of arrivals, each a run")
    time_unit: Literal["s", "ms", "us", "ns", "auto"] | None = Field(
        None, description="unit of the trace's times; the format's if left out"
    )
    from_: float | None = Field(
        None, alias="from", description="s after the first arrival from which requests are taken"
    )
    until: float | None = Field(
        None, description="s after the first arrival until which requests are taken"
    )
    time_scale: float | None = Field(None, description="factor on arrival times")
    limit: Count | None = Field(None, description="usable rows to read")
    slo_mix: str | None = Field(None, description="such as critical:0.2,standard:0.8")
    prefix_model: str | None = Field(None, description="such as groups:8:1024:0.9")
    strict: bool | None = Field(None, description="refuse malformed rows")


class Request(_Part):
    """What to evaluate: a strategy with parameters, or an arm; the rest has the strategy's values."""

    id: str | int | None = Field(None, description="given back with the answer")
    strategy: Any = Field(
        None,
        description="name of the library, path of a .yaml file, or the content of such a file",
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]},
    )
    point: str | None = Field(None, description="one of the strategy's named points")
    parameters: dict[str, Any] = Field(
        default_factory=dict,
        description="the strategy's parameters by name; they replace the point's",
    )
    settings: dict[str, Any] = Field(
        default_factory=dict,
        description="any settings of the cluster, named as BLIS's flags with underscores, and single "
        "scorers' weights as routing_scorers.NAME",
    )
    arm: str | None = Field(
        None,
        description="instead of the four above: [LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]]",
    )
    workload: Any = Field(
        None,
        description="built-in workload, path of a .yaml file, or the content of such a file",
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]},
    )
    trace: TraceKeys | None = Field(
        None,
        description="a recorded trace, instead of a workload; --trace gives it to all requests",
    )
    num_requests: Count | None = Field(None, description="in place of the workload's number")
    seeds: list[int] | None = Field(None, min_length=1, description="of the requests, each once")
    rng: Literal["reference", "jax"] = Field(
        "reference",
        description="who draws the requests: BLIS's streams, or others of the same laws, by JAX",
    )
    metrics: list[str] | None = Field(
        None, min_length=1, description="such as ttft_p99_ms[critical]; the usual ones if left out"
    )
    targets: dict[str, Limits] | None = Field(
        None, description="SLO targets by class, ms, in place of the strategy's"
    )

    @field_validator("strategy", "workload")
    @classmethod
    def _text_or_mapping(cls, value: object) -> object:
        if value is not None and not (isinstance(value, str | dict) and value):
            raise ValueError(f"got {value!r}, allowed is a name, a path, or the content of a file")
        return value

    @model_validator(mode="after")
    def _trace_or_workload(self) -> Request:
        for key in ("workload", "num_requests"):
            if self.trace is not None and getattr(self, key) is not None:
                raise ValueError(f"trace: {key} is given too; keep one of them")
        return self

    @model_validator(mode="after")
    def _arm_or_strategy(self) -> Request:
        keys = [key for key in STRATEGY_KEYS if getattr(self, key)]
        if self.arm is not None and keys:
            raise ValueError(f"arm: {keys[0]} is given too; keep one of them")
        if self.arm is None and self.strategy is None:
            raise ValueError("strategy: missing, but it or arm must be given")
        return self


class Batch(_Part):
    """Several requests; those that share workload, seeds and metrics are run together."""

    requests: list[Request] = Field(min_length=1)


class Figure(_Part):
    """A metric over the seeds; null where it does not exist, the mean only if every seed has a value."""

    unit: str
    mean: float | None
    low: float | None = Field(description="Student's t interval over the seeds, 95 %")
    high: float | None
    per_seed: list[float | None]


class FailureAnswer(_Part):
    """Why the runs of some seeds, or a metric, are missing."""

    code: str = Field(description="an outcome such as LIVELOCK or REFERENCE_CRASH, or NO_FIGURE")
    message: str = Field(description="what happened, and what to do")
    seeds: list[int]
    by_code: dict[str, list[int]]


class SeedOutcome(_Part):
    """How the run of one seed ended."""

    seed: int
    outcome: str


class Answer(_Part):
    """The answer to a request; with `error` alone if the request was refused."""

    version: int = VERSION
    id: str | int | None = None
    error: str | None = Field(None, description="one sentence that begins with the path of the key")
    metrics: dict[str, Figure] | None = Field(None, description="by name as asked for")
    classes: dict[str, dict[str, Figure]] | None = Field(
        None, description="the same by SLO class; all requests and the run under all"
    )
    score: float | None = Field(
        None, description="objectives + penalties, lower is better; failure_score after a failure"
    )
    objectives: dict[str, float] | None = Field(None, description="means; null after a failure")
    penalties: dict[str, float] | None = None
    outcomes: list[SeedOutcome] | None = None
    failure: FailureAnswer | None = None
    num_broken_invariants: int | None = None
    strategy: str | None = None
    workload: str | None = None
    num_requests: int | None = None
    seeds: list[int] | None = None
    rng: str | None = None
    targets: dict[str, dict[str, float]] | None = None
    intervals: str | None = None
    remarks: list[str] | None = Field(None, description="what is allowed, but may not be meant")
    configuration: dict[str, Any] | None = Field(
        None, description="every setting that was simulated"
    )
    cli_args: list[str] | None = Field(None, description="the same as options of BLIS")
    versions: dict[str, str] | None = None


class Answers(_Part):
    """The answers to a batch, in its order."""

    answers: list[Answer]


def schema() -> dict[str, Any]:
    """Return JSON schemas of a request, a batch, and their answers."""
    models: list[type[BaseModel]] = [Request, Batch, Answer, Answers]
    references_by_model, definitions = models_json_schema(
        [(model, "validation") for model in models], title="sweeps.evaluate"
    )
    names = ("request", "batch", "answer", "answers")
    references = [references_by_model[model, "validation"] for model in models]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **definitions,
        "properties": dict(zip(names, references, strict=True)),
    }


def parse_request(document: object, where: str) -> Request:
    """Check a request; `where` names it in errors.

    Raises:
        ConfigError: the request is no object, or a key or value is not allowed.
    """
    if not isinstance(document, dict):
        raise ConfigError(
            f"{where}: got {_brief(document)}, allowed is an object with strategy or arm"
        )
    for key in document:
        if key not in Request.model_fields:
            known = list(Request.model_fields)
            raise ConfigError(
                f"{where}: {key}: the key is unknown; use {', '.join(known)}{closest(key, known)}"
            )
    try:
        return Request.model_validate(document)
    except ValidationError as error:
        raise ConfigError(f"{where}: {_unknown_limit(error) or sentence(error)}") from None


def _unknown_limit(error: ValidationError) -> str | None:
    details = error.errors(include_url=False)[0]
    if details["type"] != "extra_forbidden":
        return None
    path, known = ".".join(map(str, details["loc"])), list(Limits.model_fields)
    hint = closest(details["loc"][-1], known)
    return f"{path}: the key is unknown; use {', '.join(known)}{hint}"


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
