"""Columns of figures as bytes: what comes back is the text, to the bit, and it is smaller."""

from __future__ import annotations

import lzma
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blis_jax.files import content
from blis_jax.files.content import canonical

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def text_of(columns: dict[str, Any]) -> bytes:
    return canonical(columns).encode()


def figures(num_runs: int, seed: int = 0) -> dict[str, list[float]]:
    """A duration, a rate over it, a percentile, a mean over counts and the count, a column that is nothing of it."""
    random = np.random.default_rng(seed)
    duration = random.integers(4_000_000, 9_000_000, num_runs) / 1e6
    counts = random.integers(200, 400, num_runs)
    percentile = random.integers(10**7, 10**8, num_runs) / 1e5
    return {
        "duration_s": duration.tolist(),
        "requests_per_s": (1000 / duration).tolist(),
        "tokens_per_sec": (random.integers(10**5, 10**6, num_runs) / duration).tolist(),
        "ttft_p99_ms": np.nextafter(percentile, np.inf).tolist(),
        "ttft_mean_ms": (random.integers(10**7, 10**8, num_runs) / (1000.0 * counts)).tolist(),
        "e2e_mean_ms": (random.integers(10**8, 10**9, num_runs) / (1000.0 * counts)).tolist(),
        "num_completed": counts.astype(float).tolist(),
        "pooled": random.normal(size=num_runs).tolist(),
        "num_dropped": [0.0] * num_runs,
    }


def test_a_text_comes_back_and_is_smaller() -> None:
    columns = figures(200)
    text = text_of(columns)
    made = content.pack(text)
    assert made is not None and text_of(content.unpack(made)) == text
    assert len(made) < 0.75 * len(lzma.compress(text, preset=9))


@given(st.dictionaries(st.text(), st.lists(FINITE | st.none() | st.integers()), min_size=1))
def test_any_columns_come_back_or_are_left_as_a_text(columns: dict[str, Any]) -> None:
    text = text_of(columns)
    made = content.pack(text)
    if made is None:
        assert {len(column) for column in columns.values()} - {
            len(next(iter(columns.values()))) or -1
        }
    else:
        assert text_of(content.unpack(made)) == text


@pytest.mark.parametrize(
    "column",
    [
        [0.0, -0.0], [1.0, 1], [None, 2.5], [5e-324, -1.7976931348623157e308], [2.0**53, -(2.0**53)],
        [0.1 + 0.2] * 2, [float(np.nextafter(0.3, 1)), 0.3],
    ],
)  # fmt: skip
def test_hard_figures_come_back(column: list[Any]) -> None:
    for duration in ([0.0, 1.0], [7.0, 9.0]):
        text = text_of({"duration_s": duration, "figure": column})
        made = content.pack(text)
        assert made is not None and text_of(content.unpack(made)) == text


@pytest.mark.parametrize("text", ["[1.0]", "{}", '{"a":1}', '{"a":[]}', '{"a": [1.0]}', '"a"'])
def test_other_texts_are_not_packed(text: str) -> None:
    assert content.pack(text.encode()) is None


def test_a_damaged_file_is_refused() -> None:
    made = content.pack(text_of(figures(20)))
    assert made is not None
    with pytest.raises((ValueError, EOFError, lzma.LZMAError)):
        content.unpack(made[:-20])
    head, _, rest = lzma.decompress(made).partition(b"\n")
    for other in (
        head,
        head + b"\n" + rest[:-3],
        b"3\n" + rest,
        head.replace(b'"ratio"', b'"other"'),
    ):
        with pytest.raises(ValueError):
            content.unpack(lzma.compress(other))
