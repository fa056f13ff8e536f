"""What is known of a length law before any draw: its mean, and how long its lengths get."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from blis_jax.workload.drawing import samplers


def mean_length(law: samplers.LengthParams) -> float:
    """Mean in tokens before rounding, infinite for a Pareto tail of index 1 or less."""
    if isinstance(law, samplers.Gaussian):
        return float(np.clip(law.mean, law.min, law.max))  # that of the law without its clamp
    if isinstance(law, samplers.Exponential):
        return float(law.mean)
    if isinstance(law, samplers.ParetoLognormal):
        return _mixture_mean(law)
    if isinstance(law, samplers.Constant):
        return float(law.value)
    weights = np.diff(np.asarray(law.cumulative), prepend=0.0)
    return float(np.sum(weights * np.asarray(law.values)))


def longest_length(law: samplers.LengthParams, chance: float) -> int:
    """Tokens that one draw exceeds with at most this probability."""
    if isinstance(law, samplers.Gaussian):
        likely = law.mean - law.std_dev * NormalDist().inv_cdf(chance)
        longest = float(np.clip(likely, law.min, law.max))
    elif isinstance(law, samplers.Exponential):
        longest = -float(law.mean) * math.log(chance)
    elif isinstance(law, samplers.ParetoLognormal):
        longest = _mixture_quantile(law, chance)
    elif isinstance(law, samplers.Constant):
        longest = float(law.value)
    else:
        longest = float(np.max(law.values))
    return max(math.floor(min(longest, samplers.LONGEST_TOKENS) + 0.5), 1)


def _mixture_mean(law: samplers.ParetoLognormal) -> float:
    weight, alpha = float(law.mix_weight), float(law.alpha)
    log_mean = float(law.mu) + float(law.sigma) ** 2 / 2.0
    lognormal = math.exp(min(log_mean, 700.0))
    if weight == 0.0:
        return lognormal
    pareto = float(law.xm) * alpha / (alpha - 1.0) if alpha > 1.0 else math.inf
    return weight * pareto + (1.0 - weight) * lognormal


def _mixture_quantile(law: samplers.ParetoLognormal, chance: float) -> float:
    """A bound: the longer of the quantiles of the two parts."""
    log_longest = []
    if law.mix_weight > 0.0:
        log_longest.append(math.log(float(law.xm)) - math.log(chance) / float(law.alpha))
    if law.mix_weight < 1.0:
        deviations = -NormalDist().inv_cdf(chance)
        log_longest.append(float(law.mu) + float(law.sigma) * deviations)
    return math.exp(min(max(log_longest), 700.0))
