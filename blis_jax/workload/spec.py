"""Read workload specifications: a file of either version, a text, or a workload of the package; and replace keys."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from blis_jax.core.types import OLD_CLASSES
from blis_jax.errors import ConfigError, ConfigWarning, choices, closest, shortened
from blis_jax.files.input_files import check_regular, shipped_names
from blis_jax.files.strict_yaml import read_mapping, sentence
from blis_jax.workload.inference_perf import first_clients
from blis_jax.workload.length_laws import UNKNOWN_KEY
from blis_jax.workload.revised_spec import RevisedWorkload
from blis_jax.workload.source import FIRST_REVISION, REVISED, REVISIONS
from blis_jax.workload.spec_parts import ActiveWindow as ActiveWindow
from blis_jax.workload.spec_parts import ArrivalSpec as ArrivalSpec
from blis_jax.workload.spec_parts import ClientSpec as ClientSpec
from blis_jax.workload.spec_parts import MeasureSpec as MeasureSpec
from blis_jax.workload.spec_parts import MultimodalSpec as MultimodalSpec
from blis_jax.workload.spec_parts import MultiTurnSpec as MultiTurnSpec
from blis_jax.workload.spec_parts import NetworkSpec as NetworkSpec
from blis_jax.workload.spec_parts import WorkloadSpec as WorkloadSpec

TEXTS = ("id", "tenant_id", "model", "prefix_group", "adapter")  # keys whose values are names


_OF_CLIENTS = ({"target", "data"}, {"load", "data"})  # keys of their configurations


def parse_spec(
    text: str, source: str = "workload specification", revision: str | None = FIRST_REVISION
) -> WorkloadSpec:
    """Return the checked specification in a YAML text; `source` names it in errors, `revision` is the BLIS to follow.

    With None, February's rules apply, unless the text has a key that only August has. Files of version 1 are converted
    to version 2, with a ConfigWarning for each changed name.
    """
    kind = _spec_class(revision or FIRST_REVISION)
    read = read_mapping(text, source, TEXTS)
    if any(keys <= read.keys() for keys in _OF_CLIENTS):
        raise ConfigError(
            f"{source}: it tells a benchmark client (GuideLLM, inference-perf) what to send; give that client's result "
            "with --trace, or write a workload file, which names clients (docs/how-to/workloads.md)"
        )
    data = upgraded(read, source)
    try:
        return _with_clients(kind.model_validate(data))
    except ValidationError as error:
        if revision is None and (_has_later_key(error, data) or _has_rates_of_data(data)):
            return parse_spec(text, source, REVISED)
        words = sentence(error, kind.law_types)
        if kind is not RevisedWorkload and _is_revised(data):
            words = (
                f"{words}; BLIS of August 2026 knows it: `run --profile blis-2026-08 --workload-spec FILE` simulates "
                "the file; `run --corrected`, compare, sweep, ablate, select, limits, optimize, sensitivity and "
                "capacity take its keys too; what goes over rates of arrival (curve, robustness, dataset) and promote "
                "do not"
            )
        raise ConfigError(f"{source}: {words}") from None
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _has_rates_of_data(data: Mapping[Any, Any]) -> bool:
    """Return whether requests come from ServeGen data at no rate of the file, which only August allows."""
    return bool(data.get("servegen_data")) and not data.get("aggregate_rate")


HINT = "did you mean"  # of `closest`


def _has_later_key(error: ValidationError, data: object) -> bool:
    """Return whether a key that February refuses is a key of August's, or is close to one."""
    unknown, is_near = _unknown_keys(error), False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConfigWarning)
        try:
            RevisedWorkload.model_validate(data)
        except ValidationError as other:
            known_near = [HINT in sentence(failure) for failure in (error, other)]
            is_near = bool(unknown) and known_near == [False, True]
            unknown -= _unknown_keys(other)
    return is_near or bool(unknown)


def _unknown_keys(error: ValidationError) -> set[tuple[int | str, ...]]:
    failures = error.errors(include_url=False)
    unknown = [failure for failure in failures if failure["type"] == UNKNOWN_KEY]
    return {(*failure["loc"], *failure["ctx"]["below"]) for failure in unknown}


def _is_revised(data: object) -> bool:
    """Return whether the content is valid under August's rules without a warning."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConfigWarning)
            RevisedWorkload.model_validate(data)
    except (ValidationError, ConfigError, ConfigWarning):
        return False
    return True


def _spec_class(revision: str) -> type[WorkloadSpec]:
    if revision not in REVISIONS:
        raise ConfigError(
            f"revision {revision!r} is unknown, allowed is one of {', '.join(REVISIONS)}"
            f"{closest(revision, REVISIONS)}"
        )
    if revision != REVISED:
        return WorkloadSpec
    return RevisedWorkload


def _with_clients(spec: WorkloadSpec) -> WorkloadSpec:
    """Return the workload with the clients that the first revision makes of `inference_perf` or `servegen_data`."""
    if spec.revision != FIRST_REVISION or spec.clients:
        return spec
    if spec.inference_perf is not None:
        mean_rate, clients = first_clients(spec.inference_perf)
        rate = mean_rate if spec.aggregate_rate is None else spec.aggregate_rate
        return override(spec, clients=clients, aggregate_rate=rate, inference_perf=None)
    if spec.servegen_data is None:
        return spec
    clients, notes = spec.servegen_data.clients()
    for note in notes:
        warnings.warn(note, ConfigWarning, stacklevel=2)
    try:
        return override(spec, clients=clients, servegen_data=None)
    except ConfigError as error:
        raise ConfigError(
            f"servegen_data: the {len(clients)} clients made of it: {error}"
        ) from None


def load_spec(path: str | Path, revision: str | None = FIRST_REVISION) -> WorkloadSpec:
    """Return the workload in a file.

    Args:
        path: a YAML file in BLIS's format, version 1 or 2.
        revision: the BLIS whose keys and rules apply, `blis-2026-02` or `blis-2026-08`; None: February's, unless the
            file has a key that only August has.

    Raises:
        ConfigError: the file cannot be read, a key is unknown, or a value is impossible; the message has the path of
            the key.
    """
    try:
        text = check_regular(Path(path)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a UTF-8 text"
        raise ConfigError(f"{path}: cannot be read ({reason}); give a YAML workload file") from None
    return parse_spec(text, str(path), revision)


def override(spec: WorkloadSpec, **changes: Any) -> WorkloadSpec:
    """Return the same workload with top-level keys replaced, checked again.

    Raises:
        ConfigError: a key is unknown, or its value is impossible.
    """
    try:
        with warnings.catch_warnings():  # the file has already caused its warnings
            warnings.simplefilter("ignore", ConfigWarning)
            return type(spec).model_validate({**spec.model_dump(), **changes})
    except ValidationError as error:
        raise ConfigError(sentence(error, spec.law_types)) from None


def with_zipf(spec: WorkloadSpec, exponent: float) -> WorkloadSpec:
    """Return the workload with adapters whose popularity falls as 1 / rank^exponent.

    Raises:
        ConfigError: the workload does not distribute requests over adapters.
    """
    adapters = getattr(spec, "adapters", None)
    if adapters is None:
        raise ConfigError(
            "the workload has no adapters whose popularity could change; give it the key adapters with names"
        )
    return override(spec, adapters={"names": adapters.names, "zipf": exponent})


def list_builtin() -> tuple[str, ...]:
    """Return the names of the package's workloads."""
    return shipped_names("blis_jax", "data", "workloads")


def load_builtin(name: str, revision: str | None = FIRST_REVISION) -> WorkloadSpec:
    """Return a workload of the package by name, such as `mixed`; `list_builtin` returns all names.

    `revision` is the BLIS whose rules apply.

    Raises:
        ConfigError: there is no such workload.
    """
    if name not in list_builtin():
        raise ConfigError(f"workload {name!r} is unknown; {choices(name, list_builtin())}")
    file = resources.files("blis_jax") / "data" / "workloads" / f"{name}.yaml"
    return parse_spec(file.read_text(encoding="utf-8"), f"{name}.yaml", revision)


# --- files of version 1, read as version 2 ---------------------------------------------------------


# Files without a version are of version 1. BLIS does not know the names in files of version "1.0".
FIRST_VERSION = (None, "", 1, "1", "1.0")
SECOND_VERSION = (2, "2", "2.0")


def upgraded(data: Mapping[Any, Any], source: str) -> dict[Any, Any]:
    """Return the same workload in version 2, with a ConfigWarning for each class whose name has changed.

    Like BLIS, this reads every version other than 1 as version 2.
    """
    version = data.get("version")
    if isinstance(version, bool) or not isinstance(version, str | int | float | None):
        return dict(data)
    if version not in (*FIRST_VERSION, *SECOND_VERSION):
        text = (
            f"version {shortened(version)} is not known; the file is read as version 2, as in BLIS"
        )
        warnings.warn(f"{source}: {text}", ConfigWarning, stacklevel=4)
    if version not in FIRST_VERSION:
        return {**data, "version": "2"}
    clients = data.get("clients")
    if isinstance(clients, list):
        clients = [_client(client, index, source) for index, client in enumerate(clients)]
    changes = {"version": "2"} | ({"clients": clients} if "clients" in data else {})
    return {**data, **changes}


def _client(client: object, index: int, source: str) -> object:
    if not isinstance(client, dict) or client.get("slo_class") not in tuple(OLD_CLASSES):
        return client
    name = client["slo_class"]
    current = OLD_CLASSES[name]
    warnings.warn(
        f"{source}: clients[{index}].slo_class: {name!r} is a name of version 1 and read as "
        f"{current!r}; write {current!r} and version '2'",
        ConfigWarning,
        stacklevel=5,
    )
    return {**client, "slo_class": current}
