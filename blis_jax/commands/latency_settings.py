"""What the options say of step times: coefficients given, calibrated or fitted, or a model that computes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blis_jax.errors import ConfigError

KV_BLOCKS_WITHOUT_FIT = 1_000_000  # the reference's default beside given coefficients


def latency_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Model, GPU, TP, coefficients and KV blocks: given coefficients win, else those of the fit.

    None stands for what a model that computes from sizes finds by itself.
    """
    from blis_jax.latency.coefficients import lookup
    from blis_jax.latency.registry import FROM_SIZES

    model, gpu, tp = (given.get(name) for name in ("model", "hardware", "tp"))
    if not model:
        raise ConfigError(
            "--model is missing; for instance --model meta-llama/llama-3.1-8b-instruct"
        )
    if tp is not None and tp < 0:
        raise ConfigError(f"--tp must be at least 1, got {tp}")
    alpha, beta, fitted = _coefficients(given)
    if given.get("latency_model") in FROM_SIZES:
        return {"model": model.lower(), "tp": tp or None, **_of_sizes(given)}
    if any(beta):
        blocks = given.get("total_kv_blocks", KV_BLOCKS_WITHOUT_FIT)
        found = {"hardware": gpu or "", "tp": tp or 0}
        found |= {"alpha_coeffs": alpha, "beta_coeffs": beta, "total_kv_blocks": blocks}
    elif any(alpha):
        raise ConfigError(
            "--alpha-coeffs without --beta-coeffs would give steps that take no time; "
            "give both, or neither to take the model's fit"
        )
    else:
        fit = lookup(model, gpu or None, tp or None, given.get("vllm_version") or None)
        blocks = given.get("total_kv_blocks", fit.total_kv_blocks)
        found = {"hardware": fit.gpu, "tp": fit.tp}
        found |= {"alpha_coeffs": fit.alpha, "beta_coeffs": fit.beta, "total_kv_blocks": blocks}
    return {"model": model.lower(), **found, **fitted}


def _of_sizes(given: Mapping[str, Any]) -> dict[str, Any]:
    """What a model that computes from sizes is given besides the served model."""
    from blis_jax.cluster.config import ClusterConfig

    name = given["latency_model"]
    if given.get("vllm_version"):
        raise ConfigError(
            f"--vllm-version chooses among fits, and {name} has none; leave it out, or leave --latency-model out"
        )
    missing = [one for one in ("alpha_coeffs", "beta_coeffs") if one not in given]
    if name == "roofline" and len(missing) < 2:
        raise ConfigError("--latency-model roofline has no coefficients; leave them out")
    if len(missing) == 1:
        raise ConfigError(
            f"--{missing[0].replace('_', '-')} is missing: {name} takes both kinds of coefficients or neither"
        )
    found = {one: given.get(one) for one in ("alpha_coeffs", "beta_coeffs", "total_kv_blocks")}
    return {"hardware": given.get("hardware") or ClusterConfig.hardware, **found}


def _coefficients(
    given: Mapping[str, Any],
) -> tuple[tuple[float, ...], tuple[float, ...], dict[str, str]]:
    """α and β as given or calibrated, zeros if neither; and the latency model of a calibration."""
    if "coefficients_from" not in given:
        none = (0.0, 0.0, 0.0)
        return given.get("alpha_coeffs", none), given.get("beta_coeffs", none), {}
    for name in ("alpha_coeffs", "beta_coeffs", "latency_model"):
        if name in given:
            written = f"--{name.replace('_', '-')}"
            raise ConfigError(f"{written}: --coefficients-from is given too; give one of them")
    from pathlib import Path

    from blis_jax.calibrate.intervals.posterior import load

    posterior = load(Path(given["coefficients_from"]))
    return *posterior.coefficients(), {"latency_model": posterior.latency_model}
