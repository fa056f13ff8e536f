"""Fits of the step law to several deployments, kept in one file, which predict the steps of another file."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from blis_jax.calibrate.described_steps import (
    GPU,
    Describe,
    DescribedLaw,
    carried_over,
    fit_described,
)
from blis_jax.calibrate.step_fit import (
    SCALES,
    SCALES_OF_STEPS,
    DeploymentFit,
    Errors,
    beta_across,
    fit_across,
    fit_deployment,
    law_us,
    plain,
)
from blis_jax.errors import ConfigError, choices
from blis_jax.files.atomic_write import json_text
from blis_jax.files.formats import number_of, refuse_newer
from blis_jax.latency.contract import BentLaw
from blis_jax.latency.registry import find
from blis_jax.latency.step_law import TERMS
from blis_jax.traces.measured.steps import EngineSteps, MeasuredEngine, StepFile

if TYPE_CHECKING:
    from jaxtyping import Float

KIND, LAW = "step law", "step-law"
FORMAT = number_of(KIND)
OWN, ACROSS, NEAREST, CARRIED, DESCRIBED = (
    "its own fit",
    "fit across the model's deployments",
    "fit of another deployment",
    "fit of another deployment and what the model's description says of both",
    "the model's description and fits to other models",
)


class PredictedSteps(NamedTuple):
    """Predicted step times, the fit they come from, and the factor within which nine in ten lie; None if unknown."""

    ms: Float[np.ndarray, " step"]
    which: str
    factor: float | None = None


@dataclass(frozen=True)
class StepFits:
    """Hold the law of each deployment, and of each model across its deployments."""

    deployments: tuple[DeploymentFit, ...]
    across: Mapping[str, Float[np.ndarray, "scale term"]]  # by model
    source: str  # the file that was fitted to, and its hash
    # for other models; None: fewer than two have descriptions
    described: DescribedLaw | None = None
    latency_model: str = LAW  # or the bent law of a file, whose coefficients the deployments have

    @classmethod
    def of(
        cls,
        file: StepFile,
        source: str,
        describe: Describe = lambda _: None,
        gpu: str = GPU,
        latency_model: str = LAW,
    ) -> StepFits:
        """Fit each deployment of a file, each model with several, and the law for described models.

        Raises:
            ConfigError: a deployment has too few steps, or the latency model is no bent law.
        """
        residual = residual_of(latency_model)
        fits = tuple(fit_deployment(steps, residual) for steps in file.runs)
        models = dict.fromkeys(steps.engine.model for steps in file.runs)
        laws = (
            (model, fit_across([fit for fit in file.runs if fit.engine.model == model]))
            for model in models
        )
        across = {model: law for model, law in laws if law is not None}
        return cls(fits, across, source, fit_described(file.runs, describe, gpu), latency_model)

    def beta_of(self, run: str, engine: MeasuredEngine) -> tuple[Float[np.ndarray, " term"], str]:
        """Return the coefficients for a deployment, and a word for the fit that they come from.

        Args:
            run: its name; a fitted run of this name and engine is taken first.
            engine: the model on its GPUs.

        Raises:
            ConfigError: no deployment of the model was fitted.
        """
        of_model = [fit for fit in self.deployments if fit.engine.model == engine.model]
        if not of_model:
            raise ConfigError(
                f"no deployment of model {engine.model!r} was fitted; "
                f"{choices(engine.model, tuple(dict.fromkeys(fit.engine.model for fit in self.deployments)))}; "
                "record some of its steps first, or say with --model which of these it is"
                + (
                    ""
                    if self.described is None
                    else ", or give its config.json with --model-config"
                )
            )
        alike = [fit for fit in of_model if fit.engine == engine]
        named = [fit for fit in alike if fit.run == run]
        if named or len(alike) == 1:
            return (named or alike)[0].beta, OWN
        if engine.model in self.across:
            return beta_across(self.across[engine.model], engine), ACROSS
        if alike:
            return alike[0].beta, OWN
        return of_model[0].beta[: len(TERMS)], NEAREST  # what is bent there is not so here

    def predicted(self, steps: EngineSteps, describe: Describe = lambda _: None) -> PredictedSteps:
        """Return the predicted times of the steps, and the fit that they come from.

        Raises:
            ConfigError: no deployment of the model was fitted, and the model has no description, or no law for
                described models was fitted.
        """
        model = steps.engine.model
        if self.described is not None and all(
            fit.engine.model != model for fit in self.deployments
        ):
            description = describe(model)
            if description is not None:
                law = self.described
                ms = law.predicted_ms(steps.engine, description, steps.sums)
                return PredictedSteps(ms, DESCRIBED, law.factor)
        beta, which = self.beta_of(steps.run, steps.engine)
        us = law_us(beta, steps.sums, residual_of(self.latency_model))
        description = describe(model) if which == NEAREST else None
        if description is not None:
            gpu = GPU if self.described is None else self.described.gpu
            (source, *_) = (fit.engine for fit in self.deployments if fit.engine.model == model)
            us = carried_over(us, source, steps.engine, description, steps.sums, gpu)
            which = CARRIED
        return PredictedSteps(us / 1e3, which)

    def named(self, run: str) -> DeploymentFit:
        """Return the fit of the named run, or the only fit if `run` is empty.

        Raises:
            ConfigError: no run has this name, or there are several and `run` is empty.
        """
        names = tuple(fit.run for fit in self.deployments)
        if not run and len(names) == 1:
            return self.deployments[0]
        if run not in names:
            said = f"it has no run {run!r}" if run else "it has several"
            raise ConfigError(
                f"the fit is of {len(names)} deployments, and {said}; write FILE:RUN, with one of {', '.join(names)}"
            )
        return self.deployments[names.index(run)]

    def document(self) -> dict[str, Any]:
        """Return the fits as plain data; `of_document` reads them back."""
        fits = []
        for fit in self.deployments:
            numbers = {
                name: value for name, value in vars(fit).items()
                if name.startswith("num_") or (name in ("windows", "floor_ms") and np.isfinite(value))
            }  # fmt: skip
            errors = {
                "every_second": plain(fit.every_second),
                "second_half": plain(fit.second_half),
            }
            laws = {"beta": _short(fit.beta), "draws": _short(fit.draws)}
            fits.append(
                {"run": fit.run, **fit.engine._asdict(), **numbers, "errors": errors, **laws}
            )
        across = {model: _short(law) for model, law in self.across.items()}
        content = {
            "terms": list(TERMS),
            "scales": [*SCALES_OF_STEPS, *SCALES],
            "deployments": fits,
            "across": across,
        }
        if self.described is not None:
            content["described"] = self.described.document()
        if self.latency_model != LAW:
            content["latency_model"] = self.latency_model
        return {
            "kind": KIND, "format": FORMAT, "latency_model": LAW, "source": self.source,
            "hash": _hash(content), **content,
        }  # fmt: skip

    @classmethod
    def of_document(cls, document: Mapping[str, Any], where: str) -> StepFits:
        """Return the fits that `document` gave.

        Raises:
            ConfigError: something is missing, was changed, or is of another version.
        """
        refuse_newer(document.get("format"), KIND, where)
        try:
            content = {
                name: document[name] for name in ("terms", "scales", "deployments", "across")
            }
            if "described" in document:
                content["described"] = document["described"]
            latency_model = str(document.get("latency_model", LAW))
            if latency_model != LAW:
                content["latency_model"] = latency_model
            if content["terms"] != list(TERMS) or content["scales"] != [*SCALES_OF_STEPS, *SCALES]:
                raise ConfigError(f"{where} is of a version with other terms; calibrate again")
            if document["hash"] != _hash(content):
                raise ValueError("hash")
            residual = residual_of(latency_model)
            size = len(TERMS if residual is None else residual.coefficients)
            fits = tuple(_fit_of(fit, size) for fit in content["deployments"])
            across = {model: np.array(law, np.float64) for model, law in content["across"].items()}
            source = str(document["source"])
            described = content.get("described")
            law = None if described is None else DescribedLaw.of_document(described)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{where} is damaged ({error!r}); calibrate again") from None
        return cls(fits, across, source, law, latency_model)


def residual_of(latency_model: str) -> BentLaw | None:
    """Return the bent law that `latency_model` names; None if it names the step law itself.

    Raises:
        ConfigError: there is no such file or value, or it is another latency model.
    """
    if latency_model == LAW:
        return None
    found = find(latency_model)
    if not isinstance(found, BentLaw):
        raise ConfigError(
            f"{latency_model} is no law that bends step-law (a blis_jax.latency.contract.BentLaw); give one, such as "
            "surrogate/step_network.py:network"
        )
    return found


def _short(values: np.ndarray) -> Any:
    """Return numbers with seven digits, nested as in the array."""
    flat = [float(f"{value:.7g}") for value in values.ravel()]
    return np.array(flat).reshape(values.shape).tolist()


def _hash(content: Mapping[str, Any]) -> str:
    as_read = json.loads(json_text(content))
    return hashlib.sha256(json.dumps(as_read, sort_keys=True).encode()).hexdigest()[:16]


def _fit_of(entry: Mapping[str, Any], size: int) -> DeploymentFit:
    engine = MeasuredEngine(*(entry[name] for name in MeasuredEngine._fields))
    beta = np.array(entry["beta"], np.float64)
    draws = np.array(entry["draws"], np.float64)
    if (
        beta.shape != (size,)
        or draws.shape[1:] != beta.shape
        or np.any(beta < 0)
        or np.any(draws < 0)
    ):
        raise ValueError("beta or draws")
    errors = {
        name: {phase: _errors_of(fit) for phase, fit in entry["errors"][name].items()}
        for name in ("every_second", "second_half")
    }
    return DeploymentFit(
        run=str(entry["run"]),
        engine=engine,
        beta=beta,
        draws=draws,
        num_steps=int(entry["num_steps"]),
        num_warm_up=int(entry["num_warm_up"]),
        num_slow=int(entry["num_slow"]),
        num_booked=int(entry["num_booked"]),
        windows=float(entry.get("windows", math.nan)),
        floor_ms=float(entry.get("floor_ms", math.nan)),
        every_second=errors["every_second"],
        second_half=errors["second_half"],
    )


def _errors_of(entry: Mapping[str, Any]) -> Errors:
    further = (float(entry.get(name, math.nan)) for name in Errors._fields[1:])
    return Errors(int(entry["steps"]), *further)


def source_of(path: Path) -> str:
    """Return the name of a fit's source: the name of the file or folder, and for a file its hash."""
    if path.is_dir():
        return path.name
    return f"{path.name}, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def rows_in_order(file: StepFile, predicted: Sequence[np.ndarray]) -> Float[np.ndarray, " row"]:
    """Return the predictions in the order of the file's rows; NaN for a row that is no step."""
    ordered = np.full(len(file.table), np.nan)
    for steps, values in zip(file.runs, predicted, strict=True):
        ordered[steps.rows] = values
    return ordered
