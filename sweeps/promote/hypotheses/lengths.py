"""Mean and spread of the lengths that a workload draws."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from blis_jax.workload.spec import WorkloadSpec


def tokens_of_request(spec: WorkloadSpec) -> float:
    """Mean tokens of a request, its shared prefix and its answer included."""
    total = sum(client.rate_fraction for client in spec.clients)
    prefix = sum(client.rate_fraction * client.prefix_length for client in spec.clients) / total
    return (
        sum(lengths(spec, f"{part}_distribution")["mean"] for part in ("input", "output")) + prefix
    )


def lengths(spec: WorkloadSpec, field: str) -> dict[str, float]:
    """Mean, deviation and bounds of all clients' lengths together, weighted by their rates."""
    parts, total = [], sum(client.rate_fraction for client in spec.clients)
    for client in spec.clients:
        law = getattr(client, field)
        parts.append((client.rate_fraction / total, *_moments(law.model_dump(mode="json"))))
    mean = sum(share * mean for share, mean, *_ in parts)
    variance = sum(share * (std**2 + (at - mean) ** 2) for share, at, std, *_ in parts)
    return {
        "mean": round(mean, 1),
        "std_dev": round(variance**0.5, 1),
        "min": min(low for *_, low, _ in parts),
        "max": max(high for *_, high in parts),
    }


def _moments(law: Mapping[str, Any]) -> tuple[float, float, int, int]:
    """Mean, standard deviation, least and greatest length of a law, before it is cut to its bounds."""
    kind, given = law["type"], law["params"]
    if kind == "constant":
        value = int(given["value"])
        return value, 0.0, value, value
    if kind == "empirical":
        total = sum(given.values())
        shares = {int(length): weight / total for length, weight in given.items()}
        mean = sum(length * share for length, share in shares.items())
        variance = sum(share * (length - mean) ** 2 for length, share in shares.items())
        return mean, variance**0.5, min(shares), max(shares)
    if kind == "pareto_lognormal":
        share, alpha = given["mix_weight"], max(float(given["alpha"]), 1.1)
        of_pareto = alpha * given["xm"] / (alpha - 1)
        mean = share * of_pareto + (1 - share) * math.exp(given["mu"] + given["sigma"] ** 2 / 2)
    else:
        mean = float(given["mean"])
    spread = float(given.get("std_dev") or mean)  # an exponential law's is its mean
    low = int(given.get("min") or 1)
    high = int(given.get("max") or max(low + 1, round(mean + 8 * spread)))
    return mean, spread, low, high
