"""The interface of a latency model: how long a step takes, and the facts that the engine needs to call the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import jax
    import numpy as np
    from jaxtyping import Array, Float

    from blis_jax.core.views import StepBatch
    from blis_jax.latency.deployment import Deployment


class StepTimeFn(Protocol):
    """`(coefficients, batch) -> float64 µs`, traced by JAX; the engine truncates fractions of a microsecond."""

    def __call__(self, beta: Float[Array, "coefficient"], batch: StepBatch, /) -> jax.Array:
        """Return the time of one step on one instance."""
        ...


class DecodeStepsFn(Protocol):
    """`(coefficients, batch) -> (n -> time of the step after n steps)`, traced by JAX."""

    def __call__(
        self, beta: Float[Array, "coefficient"], batch: StepBatch, /
    ) -> Callable[[jax.Array], jax.Array]:
        """Return a function of n: the time of the step that comes after n steps in which the whole batch decodes.

        It gets n as int32, one number or several, and returns as many times, float64 µs. The time never falls as n
        grows.
        """
        ...


class VectorFn(Protocol):
    """`(coefficients, deployment) -> numbers`, called once on the host; `step_time` gets the numbers."""

    def __call__(self, beta: Sequence[float], deployment: Deployment, /) -> tuple[float, ...]:
        """Return the same number of values for every deployment, so that one compiled program serves all models.

        Raises:
            ConfigError: the model cannot be served so.
        """
        ...


@dataclass(frozen=True)
class FromSizes:
    """The further parts of a latency model that computes step times from the sizes of a model and its GPUs."""

    vector: VectorFn
    alpha: tuple[float, float, float]  # where a configuration gives none
    beta: tuple[float, ...]  # likewise
    fewest: int  # coefficients at least
    # the second α is a time once after decode, which only the 2026-08 revision counts; else it is per prompt token
    has_time_after_decode: bool = False


@dataclass(frozen=True)
class LatencyModel:
    """A latency model as a value; `beta_coeffs` of a configuration are its coefficients."""

    step_time: StepTimeFn
    coefficients: tuple[str, ...]  # what each is, with its unit
    needs_members: bool = False  # the batch by request (`batch.members`), not only its totals
    # steps of one batch in decode take the same time, so that many can be made at once
    has_equal_decode_steps: bool = True
    # what `step_time` says of the next steps of a batch that only decodes, bit by bit
    decode_steps: DecodeStepsFn | None = None
    # place of what every step costs among the coefficients, or the numbers from sizes; None: there is none
    overhead: int | None = 0
    sizes: FromSizes | None = None  # the step time depends on what is served on what


class FurtherFn(Protocol):
    """`(terms, µs, weights, coefficients of the step law) -> further coefficients`, called on the host."""

    def __call__(
        self,
        terms: Float[np.ndarray, "sample term"],
        us: Float[np.ndarray, " sample"],
        weights: Float[np.ndarray, "fit sample"],
        beta: Float[np.ndarray, "fit term"],
        /,
    ) -> Float[np.ndarray, "fit number"]:
        """Return the further coefficients of each fit of the step law; samples with weight 0 are to be ignored."""
        ...


class TimesFn(Protocol):
    """`(coefficients, terms) -> float64 µs` of many steps, on the host: the `step_time` of their batches."""

    def __call__(
        self, beta: Float[np.ndarray, " coefficient"], terms: Float[np.ndarray, "step term"], /
    ) -> Float[np.ndarray, " step"]:
        """Return the time of each step, at least that of the shortest step."""
        ...


@dataclass(frozen=True, kw_only=True)
class BentLaw(LatencyModel):
    """A latency model whose first coefficients are those of `step-law`, and whose others are fitted to the same steps.

    `blis-jax calibrate --residual path/to/file.py:Name` needs such a model.
    """

    further: FurtherFn
    times: TimesFn


def latency_model(
    coefficients: Sequence[str],
    needs_members: bool = False,
    has_equal_decode_steps: bool = True,
    overhead: int | None = 0,
    sizes: FromSizes | None = None,
    decode_steps: DecodeStepsFn | None = None,
) -> Callable[[StepTimeFn], LatencyModel]:
    """Return a decorator that turns a step-time function into a `LatencyModel` with these properties.

    A model that reads how many tokens were computed before a step must set `has_equal_decode_steps=False`: otherwise
    decode steps between two events are taken as equal. `decode_steps` then computes the next decode steps of a batch
    without a call of `step_time` and a read of all members for each of them.
    """

    def make(step_time: StepTimeFn) -> LatencyModel:
        """Return the latency model with this step-time function."""
        return LatencyModel(
            step_time,
            tuple(coefficients),
            needs_members,
            has_equal_decode_steps,
            decode_steps,
            overhead,
            sizes,
        )

    return make
