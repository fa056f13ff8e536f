"""Small traces for the tests, and where the real ones lie."""

import gzip
from pathlib import Path

import numpy as np
import pytest

from blis_jax.traces.read import Trace, TraceOptions, read_trace
from blis_jax.traces.rows import PER_REQUEST
from tests.support.recorded.reference_data import SHARED_DIR


def real_file(name: str) -> Path:
    """A real trace beside the checkout; the test is skipped without it."""
    path = SHARED_DIR / "data" / name
    if not path.exists():
        pytest.skip(f"no real trace: ../shared/data/{name} is not here")
    return path


def read_text(folder: Path, text: str, name: str = "trace.csv", **options: object) -> Trace:
    """Write a text and read it as a trace."""
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8", newline="")
    return read_trace(path, TraceOptions(**options))


def row_of(columns, texts, number=0, arrival_us=0, **changes):
    """One row of a TraceV2 file, in which `texts` are empty and the other columns 0 if they are not given."""
    cells = dict.fromkeys(columns, "0") | dict.fromkeys(texts, "")
    cells |= {"streaming": "false", "status": "ok", "input_tokens": "100", "output_tokens": "20"}
    cells |= {"request_id": str(number), "arrival_time_us": str(arrival_us)}
    return ",".join((cells | changes).values()) + "\n"


def assert_same_rows(first, second, but=()):
    """Equal requests, names and contents."""
    for name in PER_REQUEST:
        if name not in but:
            np.testing.assert_array_equal(getattr(first, name), getattr(second, name), name)
    for name in ("tenant_names", "client_names", "session_names", "prefix_group_names"):
        if name not in but:
            assert getattr(first, name) == getattr(second, name), name
    if "segments" not in but:
        assert (first.segments is None) == (second.segments is None)
        if first.segments is not None:
            for name in ("ptr", "content", "end"):
                np.testing.assert_array_equal(
                    getattr(first.segments, name), getattr(second.segments, name), name
                )
