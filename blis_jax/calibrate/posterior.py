"""A fit as a file, coefficients drawn from its uncertainty, and intervals of its predictions."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax.calibrate import step_fits
from blis_jax.calibrate.fit import TTFT_FLOOR_US, Latencies, Model
from blis_jax.calibrate.step_fits import StepFits
from blis_jax.calibrate.uncertainty import LEVEL, MOST_ALIKE, NUM_GROUPS
from blis_jax.errors import ConfigError, ConfigWarning
from blis_jax.files import input_files
from blis_jax.files.formats import number_of, refuse_newer
from blis_jax.latency.registry import AUTO
from blis_jax.latency.step_law import TERMS
from blis_jax.traces.measured.run import AS_VLLM, LATENCIES, STATISTICS, MeasuredRun

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int

    from blis_jax.cluster.config import ClusterConfig


NUM_DISTURBED = 200  # of each fit's simulation
NUM_FITTED, LEAST_FREEDOM = 4, 4  # coefficients; of a variance
SMOOTHING = 1.06  # Silverman's rule
BEFORE = 100  # requests before the first, in which the noise forgets that it began at 0

Interval = tuple[float, float]


@dataclass(frozen=True)
class Predictive:
    """The uncertainty that a fit leaves: covariance of the terms and noise, for intervals of predictions."""

    terms: tuple[str, ...]  # of the form of the fits
    fits: Float[np.ndarray, "fit term"]  # that the run does not exclude
    covariance: Float[np.ndarray, "term term"]  # around each of them
    noise: Float[np.ndarray, "request 2"]  # of the fitted requests, see `noise_of`

    def intervals(
        self, model: Model, run: MeasuredRun, is_part: Bool[np.ndarray, " request"]
    ) -> dict[tuple[str, str], Interval]:
        """Return an interval (low, high), ms, for every figure of the measured requests in `is_part`.

        `model` simulates the run with coefficients of the terms of `fits`.
        """
        random = np.random.default_rng(0)
        used = is_part & np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)
        lengths, ends = run.rows.output_len[used], []
        for values in self.fits:
            latencies = model(values)
            ways = self._ways(random)
            ttft = latencies.ttft_us[used] + ways @ latencies.d_ttft[used].T
            e2e = latencies.e2e_us[used] + ways @ latencies.d_e2e[used].T
            ttft, e2e = disturbed(ttft, e2e, lengths, redrawn(self.noise, len(lengths), random))
            shares = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
            ends.append(np.quantile(_figures(ttft, e2e, lengths), shares, axis=-1))
        low, high = np.min(ends, axis=0)[0], np.max(ends, axis=0)[1]
        keys = [(latency, statistic) for latency in LATENCIES for statistic in STATISTICS]
        pairs = zip(low.ravel().tolist(), high.ravel().tolist(), strict=True)
        return dict(zip(keys, pairs, strict=True))

    def document(self) -> dict[str, Any]:
        """Return the predictive as plain data; `of_document` reads it back."""
        return {
            "terms": list(self.terms),
            "fits": [[float(f"{value:.6g}") for value in row] for row in self.fits.tolist()],
            "covariance": self.covariance.tolist(),
            "noise": np.round(self.noise, 4).tolist(),
        }

    @classmethod
    def of_document(cls, document: Mapping[str, Any]) -> Predictive:
        """Return the predictive that `document` wrote; raise KeyError, TypeError or ValueError for other data."""
        terms = tuple(document["terms"])
        fits = np.array(document["fits"], np.float64).reshape(-1, len(terms))
        covariance = np.array(document["covariance"], np.float64).reshape(len(terms), len(terms))
        noise = np.array(document["noise"], np.float64).reshape(-1, 2)
        if not (len(fits) and len(noise) and np.all(np.isfinite(fits)) and np.all(fits >= 0)):
            raise ValueError("predictive")
        if not (np.all(np.isfinite(noise)) and np.all(np.isfinite(covariance))):
            raise ValueError("noise or covariance")
        return cls(terms, fits, covariance, noise)

    def _ways(self, random: np.random.Generator) -> Float[np.ndarray, "draw term"]:
        """Draw deviations of coefficients from a fit, by a multivariate Student's t with the covariance."""
        scale = np.maximum(np.sqrt(np.diag(self.covariance)), 1e-100)
        size, directions = np.linalg.eigh(self.covariance / np.outer(scale, scale))
        root = directions * np.sqrt(np.maximum(size, 0.0))
        standard = random.standard_normal((NUM_DISTURBED, len(scale)))
        freedom = max(NUM_GROUPS - len(scale), 2)
        stretch = np.sqrt(freedom / random.chisquare(freedom, (NUM_DISTURBED, 1)))
        ways: np.ndarray = scale * stretch * (standard @ root.T)
        return ways


def noise_of(
    run: MeasuredRun, latencies: Latencies, is_fitted: Bool[np.ndarray, " request"]
) -> Float[np.ndarray, "request 2"]:
    """Return the errors of a fit on its own measured requests, `[request, 2]`.

    The first column is measured less simulated TTFT, divided by simulated TTFT plus a floor. The second is the log of
    measured ÷ simulated decode time, 0 for requests without decode. Requests without latencies are left out.
    """
    used = is_fitted & np.isfinite(run.ttft_us) & np.isfinite(run.e2e_us)
    ttft, e2e = latencies.ttft_us[used], latencies.e2e_us[used]
    decoding, measured = e2e - ttft, run.e2e_us[used] - run.ttft_us[used]
    has_gap = (run.rows.output_len[used] > 1) & (decoding > 0) & (measured > 0)
    ratio = np.where(has_gap, measured, 1.0) / np.where(has_gap, decoding, 1.0)
    return np.stack([(run.ttft_us[used] - ttft) / (TTFT_FLOOR_US + ttft), np.log(ratio)], axis=1)


def redrawn(
    noise: Float[np.ndarray, "request kind"], count: int, random: np.random.Generator
) -> Float[np.ndarray, "draw other kind"]:
    """Draw noise for `count` other requests, autocorrelated like the given noise.

    Mean, size and autocorrelation are themselves drawn around the estimates from `noise`, whose requests are too few to
    fix them. Innovations are smoothed, since the largest have not been seen yet.
    """
    num, mean = len(noise), noise.mean(axis=0)
    whole = noise - mean
    power = np.maximum(np.sum(whole**2, axis=0), 1e-300)
    correlation = np.sum(whole[1:] * whole[:-1], axis=0) / power
    steps = whole[1:] - correlation * whole[:-1] if num > 1 else whole
    steps = (steps - steps.mean(axis=0)) / np.maximum(steps.std(axis=0), 1e-300)
    # what was fitted hides some of it, as a line would (Marriott and Pope, 1954)
    alike = correlation + (2 + 4 * correlation) / num
    error = np.sqrt(np.maximum(1 - alike**2, 0.0) / num)
    shape = NUM_DISTURBED, noise.shape[1]
    alike = np.clip(alike + error * random.standard_normal(shape), 0.0, MOST_ALIKE)
    places = random.integers(0, len(steps), (BEFORE + num + count, NUM_DISTURBED))
    quarters = np.percentile(steps, [25, 75], axis=0)
    width = SMOOTHING * num**-0.2 * np.minimum(1.0, np.diff(quarters, axis=0)[0] / 1.349)
    drawn = steps[places] + width * random.standard_normal((*places.shape, noise.shape[1]))
    drawn *= np.sqrt(1 - alike**2) * whole.std(axis=0) * _sizes(alike, num, random)
    for place in range(1, len(drawn)):
        drawn[place] += alike * drawn[place - 1]
    as_fitted = drawn[BEFORE : BEFORE + num].mean(axis=0)
    return np.swapaxes(mean - as_fitted + drawn[BEFORE + num :], 0, 1)


def _sizes(
    alike: Float[np.ndarray, "draw kind"], num: int, random: np.random.Generator
) -> Float[np.ndarray, "draw kind"]:
    """Draw factors by which the true noise may exceed the noise of `num` requests with autocorrelation `alike`.

    Subtracting the mean hides a part of the variance; the rest has the degrees of freedom of fewer independent requests
    (Bayley and Hammersley, 1946), less the fitted coefficients.
    """
    independent = np.maximum(num * (1 - alike) / (1 + alike), 2.0)
    freedom = num * (1 - alike**2) / (1 + alike**2) - NUM_FITTED
    freedom = np.maximum(freedom, LEAST_FREEDOM)
    sizes: np.ndarray = np.sqrt(freedom / random.chisquare(freedom) / (1 - 1 / independent))
    return sizes


def disturbed(
    ttft_us: Float[np.ndarray, "draw request"],
    e2e_us: Float[np.ndarray, "draw request"],
    output_len: Int[np.ndarray, " request"],
    noise: Float[np.ndarray, "draw request 2"],
) -> tuple[Float[np.ndarray, "draw request"], Float[np.ndarray, "draw request"]]:
    """Return TTFT and E2E with the noise added; neither falls below 0."""
    ttft = np.maximum(ttft_us + noise[..., 0] * (TTFT_FLOOR_US + ttft_us), 0.0)
    decoding = np.maximum(e2e_us - ttft_us, 0.0) * np.where(
        output_len > 1, np.exp(noise[..., 1]), 1.0
    )
    return ttft, ttft + decoding


def _figures(
    ttft_us: Float[np.ndarray, "draw request"],
    e2e_us: Float[np.ndarray, "draw request"],
    output_len: Int[np.ndarray, " request"],
) -> Float[np.ndarray, "latency statistic draw"]:
    """Return for each draw every statistic of every latency, ms, defined as in `validation.figures`."""
    has_gap = output_len > 1
    gaps = np.maximum(output_len[has_gap] - 1.0, 1.0)
    tpot = (e2e_us - ttft_us)[:, has_gap] / gaps
    figures = []
    for values in (ttft_us, tpot, e2e_us):
        if not values.shape[1]:
            figures.append(np.full((len(STATISTICS), len(values)), np.nan))
            continue
        ranks = [float(name[1:]) for name in STATISTICS[1:]]
        figures.append(
            np.vstack([values.mean(axis=1), *np.percentile(values, ranks, axis=1)]) / 1e3
        )
    return np.stack(figures)


# --- a fit as a file, and coefficients drawn from what it leaves open -----------------------------


KIND = "calibration"
FORMAT = number_of(KIND)
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
    server: Mapping[str, Any] = field(default_factory=dict)  # what the measured run says of it
    law: str = ""  # the latency model where the terms are all of its coefficients, and α is 0
    fits: Float[np.ndarray, "fit term"] | None = None  # which are drawn from where there are any

    @property
    def latency_model(self) -> str:
        """Return the name of the latency model whose coefficients were fitted."""
        return self.law or model_of({*self.terms, *self.fixed})

    def draws(self, num_draws: int, seed: int) -> Float[np.ndarray, "draw term"]:
        """Draw coefficients from a normal law, folded back at 0; the same for the same seed."""
        if not self.terms:
            return np.zeros((num_draws, 0))
        random = np.random.default_rng(seed)
        if self.fits is not None:
            chosen: np.ndarray = self.fits[random.integers(len(self.fits), size=num_draws)]
            return chosen
        standard = random.standard_normal((num_draws, len(self.terms)))
        scale = np.maximum(np.abs(self.values), 1e-12)
        relative = self.covariance / np.outer(scale, scale)
        size, directions = np.linalg.eigh((relative + relative.T) / 2)
        root = directions * np.sqrt(np.maximum(size, 0.0))
        return np.abs(self.values + scale * (standard @ root.T))

    def coefficients(
        self, values: Float[np.ndarray, " term"] | None = None
    ) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return α and β at the fit, or at one of its draws; β has a fourth term if the fit has it."""
        if self.law:
            return (0.0, 0.0, 0.0), tuple((self.values if values is None else values).tolist())
        values_by_term = {**self.fixed, **dict(zip(self.terms, self.values.tolist(), strict=True))}
        if values is not None:
            values_by_term |= dict(zip(self.terms, np.asarray(values).tolist(), strict=True))
        return coefficients_of(values_by_term)

    @property
    def server_settings(self) -> dict[str, Any]:
        """Return the settings of one instance for which the fit was made, without router and number of instances."""
        of_cluster = ("num_instances", "routing_policy")
        known = {name: value for name, value in self.cluster.items() if name not in of_cluster}
        if known or self.law:
            told = {"model": "", "hardware": "", "tp": 1}
            names = {"model": "model", "gpu": "hardware", "tp": "tp"}
            told |= {names[name]: value for name, value in self.server.items() if name in names}
            known |= told
        return {**AS_VLLM, **known}

    def configured(
        self, config: ClusterConfig, values: Float[np.ndarray, " term"] | None = None
    ) -> ClusterConfig:
        """Return a configuration with the coefficients of the fit, or of one of its draws."""
        alpha, beta = self.coefficients(values)
        model = self.latency_model
        return config.replace(alpha_coeffs=alpha, beta_coeffs=beta, latency_model=model)


def model_of(terms: Collection[str]) -> str:
    """Return the name of the latency model with these terms."""
    return CONTEXT_MODEL if "beta3" in terms else AUTO


def coefficients_of(values: Mapping[str, float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return α and β of named terms; terms that are not named are 0."""
    alpha = tuple(float(values.get(f"alpha{place}", 0.0)) for place in range(3))
    beta = tuple(float(values.get(f"beta{place}", 0.0)) for place in range(3))
    return alpha, (*beta, float(values["beta3"])) if "beta3" in values else beta


def load(path: Path) -> Posterior:
    """Return the posterior that `blis-jax calibrate` wrote; warn of a fit that does not describe its run.

    If the file has fits to the steps of several deployments, `FILE:RUN` chooses one.
    """
    file, run = _file_and_run(path)
    document = input_files.read_json(file, "a result of blis-jax calibrate")
    if isinstance(document, dict) and document.get("kind") == step_fits.KIND:
        return _of_steps(StepFits.of_document(document, str(file)), run, str(path))
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ConfigError(f"{path} is not a calibration; give a result of blis-jax calibrate")
    refuse_newer(document.get("format"), KIND, str(path))
    try:
        return _posterior(document, str(path))
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path} is damaged ({error!r}); calibrate again") from None


def load_steps(path: Path) -> StepFits:
    """Return the fits to steps that `blis-jax calibrate` wrote.

    Raises:
        ConfigError: the file has no fits to steps, or is damaged.
    """
    document = input_files.read_json(path, "a fit of blis-jax calibrate to measured steps")
    if not isinstance(document, dict) or document.get("kind") != step_fits.KIND:
        raise ConfigError(
            f"--coefficients-from: {path} is no fit to measured steps; make one with blis-jax calibrate STEPS"
        )
    return StepFits.of_document(document, str(path))


def _file_and_run(path: Path) -> tuple[Path, str]:
    file, _, run = str(path).rpartition(":")
    return (Path(file), run) if file.endswith(".json") else (path, "")


def _of_steps(fits: StepFits, run: str, source: str) -> Posterior:
    deployment = fits.named(run)
    covariance = np.cov(deployment.draws.T)
    residual = step_fits.residual_of(fits.latency_model)
    terms = TERMS if residual is None else residual.coefficients
    return Posterior(
        terms, deployment.beta, covariance, {}, source,
        server={"model": deployment.engine.model, "tp": deployment.engine.tp}, law=fits.latency_model,
        fits=deployment.draws,
    )  # fmt: skip


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
    cluster, server = document.get("cluster", {}), document.get("server", {})
    if not (isinstance(cluster, dict) and isinstance(server, dict)):
        raise TypeError("cluster or server")
    fixed, wider = dict(document.get("fixed", {})), document.get("predictive")
    predictive = None if wider is None else Predictive.of_document(wider)
    if predictive is not None and not set(terms) <= set(predictive.terms) <= set(ALL_TERMS):
        raise ValueError("predictive")
    verdict = document.get("verdict", {"describes": True})  # files of earlier versions have none
    if not verdict["describes"]:
        warnings.warn(f"{source}: {verdict['words']}", ConfigWarning, stacklevel=3)
    return Posterior(terms, values, covariance, fixed, source, cluster, predictive, server)
