"""A fit as a file, and coefficients drawn from what it leaves open."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.calibrate.intervals.predictive import Predictive
from blis_jax.errors import ConfigError
from blis_jax.files import input_files
from blis_jax.latency.registry import AUTO

if TYPE_CHECKING:
    from jaxtyping import Float

    from blis_jax.cluster.config import ClusterConfig

KIND = "calibration"
FORMAT = 1
CONTEXT_MODEL = "blackbox-context"  # what beta3 belongs to, also in files that do not name a model
ALL_TERMS = ("alpha0", "alpha1", "alpha2", "beta0", "beta1", "beta2", "beta3")


@dataclass(frozen=True)
class Posterior:
    """Coefficients of a fit with their covariance, µs; terms that were not fitted are fixed."""

    terms: tuple[str, ...]
    values: Float[np.ndarray, " term"]
    covariance: Float[np.ndarray, "term term"]
    fixed: Mapping[str, float]
    source: str
    cluster: Mapping[str, Any] = field(default_factory=dict)  # that the fit was made for
    predictive: Predictive | None = None  # where the fit explored

    @property
    def latency_model(self) -> str:
        """The setting that names the model whose coefficients they are."""
        return model_of({*self.terms, *self.fixed})

    def draws(self, num_draws: int, seed: int) -> Float[np.ndarray, "draw term"]:
        """Normal draws, folded back at 0; the same for the same seed."""
        if not self.terms:
            return np.zeros((num_draws, 0))
        standard = np.random.default_rng(seed).standard_normal((num_draws, len(self.terms)))
        scale = np.maximum(np.abs(self.values), 1e-12)
        relative = self.covariance / np.outer(scale, scale)
        size, directions = np.linalg.eigh((relative + relative.T) / 2)
        root = directions * np.sqrt(np.maximum(size, 0.0))
        return np.abs(self.values + scale * (standard @ root.T))

    def coefficients(
        self, values: Float[np.ndarray, " term"] | None = None
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """α and β at the fit, or at one of its draws; β has a fourth term if the fit has it."""
        given = {**self.fixed, **dict(zip(self.terms, self.values.tolist(), strict=True))}
        if values is not None:
            given |= dict(zip(self.terms, np.asarray(values).tolist(), strict=True))
        return coefficients_of(given)

    def configured(
        self, config: ClusterConfig, values: Float[np.ndarray, " term"] | None = None
    ) -> ClusterConfig:
        """A configuration with the coefficients of the fit, or of one of its draws."""
        alpha, beta = self.coefficients(values)
        model = self.latency_model
        return config.replace(alpha_coeffs=alpha, beta_coeffs=beta, latency_model=model)


def model_of(terms: Collection[str]) -> str:
    """The setting that names the latency model of these terms."""
    return CONTEXT_MODEL if "beta3" in terms else AUTO


def coefficients_of(values: Mapping[str, float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """α and β of named terms; those without a name are 0."""
    alpha = tuple(float(values.get(f"alpha{place}", 0.0)) for place in range(3))
    beta = tuple(float(values.get(f"beta{place}", 0.0)) for place in range(3))
    return alpha, (*beta, float(values["beta3"])) if "beta3" in values else beta


def load(path: Path) -> Posterior:
    """The posterior that `python -m blis_jax.calibrate` wrote."""
    document = input_files.read_json(path, "a result of blis_jax.calibrate")
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigError(f"{path} is not a calibration; give a result of blis_jax.calibrate")
    try:
        return _posterior(document, str(path))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error!r}); calibrate again") from None


def _posterior(document: Mapping[str, Any], source: str) -> Posterior:
    terms = tuple(document["terms"])
    values = np.array([document["coefficients"][term]["value"] for term in terms], np.float64)
    covariance = np.asarray(document["covariance"], np.float64).reshape(len(terms), len(terms))
    model = CONTEXT_MODEL if "beta3" in (*terms, *document.get("fixed", {})) else "blackbox"
    if document.get("latency_model", model) != model:
        raise ValueError("latency_model does not go with the terms")
    if not (set(terms) <= set(ALL_TERMS) and np.all(np.isfinite(covariance))):
        raise ValueError("terms or covariance")
    if np.any(values < 0) or not np.all(np.isfinite(values)):
        raise ValueError("coefficients must be finite and at least 0")
    cluster = document.get("cluster", {})
    if not isinstance(cluster, dict):
        raise TypeError("cluster")
    fixed, given = dict(document.get("fixed", {})), document.get("predictive")
    predictive = None if given is None else Predictive.of_document(given)
    if predictive is not None and not set(terms) <= set(predictive.terms) <= set(ALL_TERMS):
        raise ValueError("predictive")
    return Posterior(terms, values, covariance, fixed, source, cluster, predictive)
