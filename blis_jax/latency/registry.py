"""Names of latency models, and what each needs: the only place where a name is looked up.

Functions are named by module and found when asked for, so that a command can list the names without jax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from blis_jax.errors import ConfigError, closest

if TYPE_CHECKING:
    from blis_jax.config import ClusterConfig
    from blis_jax.types import LatencyModel

AUTO = "auto"


@dataclass(frozen=True)
class Entry:
    """A latency model: where its function is, and what the engine must know of it."""

    name: str  # of the module here and of the function in it
    num_coefficients: int
    fourth: str = ""  # what the fourth coefficient is, with its unit
    needs_members: bool = False  # the batch by request, not only its totals
    # steps of one batch in decode take the same time, so that many can be made at once
    has_equal_decode_steps: bool = True

    @property
    def model(self) -> LatencyModel:
        """The model itself."""
        from blis_jax.types import LatencyModel

        function = getattr(import_module(f"blis_jax.latency.{self.name}"), self.name)
        return LatencyModel(function, self.needs_members, self.has_equal_decode_steps)


_CONTEXT = "µs per token of context in the batch"
_ATTENTION = "µs per product of new tokens and context of a request in prefill"
MODELS = {
    "blackbox": Entry("blackbox", 3),
    "blackbox-context": Entry("blackbox_context", 4, _CONTEXT, True, False),
    "blackbox-attention": Entry("blackbox_attention", 4, _ATTENTION, True),
}
REFERENCE_OF = {"scheduling": "blackbox", "routing": "blackbox-attention"}  # with four coefficients


def name_of(config: ClusterConfig) -> str:
    """The model of a configuration; `auto` is told by the number of β and the variant.

    Four β are BLIS's own attention term in the routing variant. The scheduling track's revision has
    none, so there they are the cost of context.
    """
    if config.latency_model != AUTO:
        return config.latency_model
    if len(config.beta_coeffs) < 4:
        return "blackbox"
    return "blackbox-attention" if config.variant == "routing" else "blackbox-context"


def entry_of(config: ClusterConfig) -> Entry:
    """What is known of the configuration's model."""
    return MODELS[name_of(config)]


def profile_suffix(config: ClusterConfig) -> str:
    """What a profile's name says of a model that BLIS's revision does not have."""
    name = name_of(config)
    is_reference = name in ("blackbox", REFERENCE_OF[config.variant])
    return "" if is_reference else name.replace("blackbox-", "/")


def check(config: ClusterConfig) -> None:
    """Refuses an unknown model, and coefficients that do not fit it."""
    known = (AUTO, *MODELS)
    if config.latency_model not in known:
        raise ConfigError(
            f"latency_model {config.latency_model!r} is not known; use one of {', '.join(known)}"
            f"{closest(config.latency_model, known)}"
        )
    usual = "for instance the ones that `blis_jax.coefficients.lookup` gives"
    _check_coefficients("alpha_coeffs", config.alpha_coeffs, (3,), "three", usual)
    if config.latency_model == AUTO:
        _check_coefficients("beta_coeffs", config.beta_coeffs, (3, 4), "three or four", usual)
        return
    entry = MODELS[config.latency_model]
    count = {3: "three", 4: "four"}[entry.num_coefficients]
    hint = f"the fourth is {entry.fourth}" if entry.fourth else f"{usual}, or name another model"
    hint = f"latency_model {config.latency_model} has {count}; {hint}"
    _check_coefficients("beta_coeffs", config.beta_coeffs, (entry.num_coefficients,), count, hint)


def _check_coefficients(
    name: str, values: tuple[float, ...], sizes: tuple[int, ...], count: str, hint: str
) -> None:
    if len(values) in sizes and all(math.isfinite(value) and value >= 0 for value in values):
        return
    raise ConfigError(
        f"{name} must be {count} finite numbers at least 0, got {list(values)}; {hint}"
    )
