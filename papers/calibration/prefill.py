"""`blis-jax papers prefill`: which form of a prefill's time holds beyond the batches it was fitted to.

Measured latencies of whole prompt phases and of decode steps (Splitwise, ISCA 2024). Every form is fitted
to the small batches of a deployment, with relative errors and coefficients of at least 0, and predicts the
large ones. The power-capped H100 is left out: its prompt times are those of the H100 times 1.3. So are
batches of 64 with two GPUs, whose prompt phases took a fifteenth of what a token takes elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.optimize import nnls

from blis_jax.commands import values
from blis_jax.commands.options import CommandOptions, option
from blis_jax.errors import ConfigError
from blis_jax.lazy import pandas
from blis_jax.reports import render
from blis_jax.reports.findings import Answer
from blis_jax.reports.render import table_lines

if TYPE_CHECKING:
    from jaxtyping import Float

NAME = "papers.calibration.prefill"
DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "splitwise_perf" / "perf_model.csv"
COLUMNS = (
    *("model", "hardware", "tensor_parallel", "prompt_size", "batch_size"),
    *("prompt_time", "token_time"),
)
LARGEST_FITTED = 8  # requests in a batch
KNEES = (256, 512, 768, 1024, 1536, 2048, 3072)  # tokens at which a slope may change

_DESCRIPTION = """\
Fit forms of a step's time to the small batches of Splitwise's measured latencies and predict the large
ones: prefill as a line, with a cost of attention, a square, a knee, or a floor; decode as a line. Prints
the mean error of the large batches of each deployment.
"""


class PrefillOptions(CommandOptions, title="what", command=NAME, description=_DESCRIPTION):
    """Options of the command."""

    data: Path | None = option(
        Path, None, "FILE", "perf_model.csv (default: shared/data beside the checkout), of "
        "github.com/Mutinifni/splitwise-sim",
    )  # fmt: skip
    largest_fitted: int = option(
        values.whole, LARGEST_FITTED, "N", "requests in the largest batch of the fit"
    )


class Prompts(NamedTuple):
    """Batches of equal prompts."""

    batch_size: Float[np.ndarray, " batch"]
    prompt_size: Float[np.ndarray, " batch"]  # tokens
    time_ms: Float[np.ndarray, " batch"]

    @property
    def tokens(self) -> Float[np.ndarray, " batch"]:
        """Return the tokens of all prompts of each batch."""
        return self.batch_size * self.prompt_size

    def take(self, is_taken: np.ndarray) -> Prompts:
        """Return the batches that `is_taken` marks."""
        return Prompts(*(values[is_taken] for values in self))


Form = Callable[[Prompts, Prompts], np.ndarray]  # fitted batches, others -> times of the others


def linear_in(*terms: Callable[[Prompts], np.ndarray]) -> Form:
    """Return a form that sums a constant and these terms, fitted by least squares of relative errors
    with coefficients ≥ 0.
    """

    def predicted(fitted: Prompts, others: Prompts) -> np.ndarray:
        return _weighed(_columns(terms, others), _solved(_columns(terms, fitted), fitted)[0])

    return predicted


def knee(fitted: Prompts, others: Prompts) -> np.ndarray:
    """Predict the other batches by a line fitted with the best of `KNEES`, beyond which its slope is greater."""
    best = None
    for place in KNEES:
        if place < fitted.tokens.max():
            terms = (lambda of: of.tokens, lambda of, at=place: np.maximum(of.tokens - at, 0.0))
            weights, misfit = _solved(_columns(terms, fitted), fitted)
            if best is None or misfit < best[0]:
                best = (misfit, _weighed(_columns(terms, others), weights))
    assert best is not None  # prompts are longer than the first knee
    return best[1]


def floor(fitted: Prompts, others: Prompts) -> np.ndarray:
    """Predict the other batches by the larger of a fitted constant and a fitted cost per token: weights are read while
    tokens are computed.
    """
    times, tokens = fitted.time_ms, fitted.tokens
    levels = np.geomspace(times.min() / 2, times.max(), 400)[:, None, None]
    usual = np.median((times / tokens)[tokens > np.median(tokens)])
    slopes = np.geomspace(0.3 * usual, 2.0 * usual, 200)[:, None]
    misfit = np.sum((np.maximum(levels, slopes * tokens) / times - 1.0) ** 2, axis=2)
    row, column = np.unravel_index(np.argmin(misfit), misfit.shape)
    return np.maximum(levels[row, 0, 0], slopes[column, 0] * others.tokens)


FORMS: dict[str, Form] = {
    "linear": linear_in(lambda of: of.tokens),
    "attention": linear_in(lambda of: of.tokens, lambda of: of.tokens * of.prompt_size),
    "square": linear_in(lambda of: of.tokens, lambda of: of.tokens**2),
    "knee": knee,
    "floor": floor,
}
WORDS = {
    "linear": "β0 + β1·T, T the tokens of all prompts",
    "attention": "β0 + β1·T + β3·Σ n², n the tokens of a prompt",
    "square": "β0 + β1·T + β3·T²",
    "knee": "β0 + β1·T + β3·max(T − K, 0), K one of a few",
    "floor": "max(β0, β1·T)",
}


def _columns(terms: Sequence[Callable[[Prompts], np.ndarray]], of: Prompts) -> np.ndarray:
    return np.stack([np.ones(len(of.time_ms)), *(term(of) for term in terms)], axis=1)


def _solved(columns: np.ndarray, fitted: Prompts) -> tuple[np.ndarray, float]:
    relative = columns / fitted.time_ms[:, None]
    size = relative.max(axis=0)
    weights, misfit = nnls(relative / size, np.ones(len(relative)))
    return weights / size, float(misfit)


def _weighed(columns: np.ndarray, weights: np.ndarray) -> np.ndarray:
    weighed: np.ndarray = columns @ weights
    return weighed


class Extrapolated(NamedTuple):
    """Mean relative errors of one deployment's large batches."""

    deployment: str
    prefill: dict[str, float]  # by form
    decode: float


def extrapolated(table: pandas.DataFrame, largest: int) -> list[Extrapolated]:
    """Return the errors of every deployment that counts as measured on its own."""
    is_kept = (table["hardware"] != "h100-80gb-pcap") & ~(
        (table["tensor_parallel"] == 2) & (table["batch_size"] == 64)
    )
    rows = []
    for key, of in table[is_kept].groupby(["model", "hardware", "tensor_parallel"]):
        batch, prompt, time = (
            of[name].to_numpy(np.float64) for name in ("batch_size", "prompt_size", "prompt_time")
        )
        prompts = Prompts(batch, prompt, time)
        is_fitted = prompts.batch_size <= largest
        prefill = {name: _error(form, prompts, is_fitted) for name, form in FORMS.items()}
        steps = prompts._replace(time_ms=of["token_time"].to_numpy(np.float64))
        decode = _error(linear_in(lambda of: of.batch_size), steps, is_fitted)
        name, gpu, gpus = key
        rows.append(Extrapolated(f"{name}, {gpus} × {gpu}", prefill, decode))
    return rows


def _error(form: Form, prompts: Prompts, is_fitted: np.ndarray) -> float:
    others = prompts.take(~is_fitted)
    return float(np.mean(form(prompts.take(is_fitted), others) / others.time_ms - 1.0))


def median_sizes(rows: Sequence[Extrapolated]) -> dict[str, float]:
    """Return by form the median over deployments of the error's size."""
    return {name: float(np.median([abs(row.prefill[name]) for row in rows])) for name in FORMS}


def text(rows: Sequence[Extrapolated], largest: int) -> str:
    """Write the table in Markdown, with the median of the sizes of the errors."""
    lines = [f"Fitted to batches of up to {largest}; mean error of the larger ones, %:", ""]
    cells = [
        (row.deployment, *(f"{100 * row.prefill[name]:+.0f}" for name in FORMS), f"{100 * row.decode:+.0f}")
        for row in rows
    ]  # fmt: skip
    sizes = [*median_sizes(rows).values(), float(np.median([abs(row.decode) for row in rows]))]
    cells.append(("median size", *(f"{100 * size:.0f}" for size in sizes)))
    lines += table_lines(("deployment", *FORMS, "decode, linear"), cells)
    return "\n".join([*lines, "", *(f"{name}: {WORDS[name]}" for name in FORMS)])


@PrefillOptions.as_main
def main(options: PrefillOptions) -> int:
    """Run the command; return its exit code."""
    largest = options.largest_fitted
    table = _read(options.data or DATA)
    sizes = table["batch_size"]
    if not sizes.min() <= largest < sizes[table["tensor_parallel"] == 2].max():
        raise ConfigError(
            f"--largest-fitted: got {largest}; give a size between the smallest and the largest batch"
        )
    rows = extrapolated(table, largest)
    sizes = median_sizes(rows)
    nearest = min(FORMS, key=lambda name: sizes[name])
    render.show_answer(
        Answer.of(
            "Which form of the prefill time goes on to batches that were not fitted?",
            f"{nearest}: {100 * sizes[nearest]:.0f} % off, the median of {len(rows)} deployments.",
            f"errors of batches above {largest}; fitted to the smaller ones.",
            "nothing was simulated.",
            "the table has each deployment; below zero is too fast.",
        ),
        text(rows, largest),
    )
    return 0


def _read(path: Path) -> pandas.DataFrame:
    if not path.is_file():
        raise ConfigError(
            f"{path} does not exist; give perf_model.csv of github.com/Mutinifni/splitwise-sim with --data"
        )
    table = pandas.read_csv(path)
    lacking = [name for name in COLUMNS if name not in table]
    if lacking:
        raise ConfigError(f"{path} has no column {lacking[0]}; give Splitwise's perf_model.csv")
    return table


if __name__ == "__main__":
    sys.exit(main())
