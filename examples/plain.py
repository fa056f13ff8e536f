"""A trace in our own format, from columns that are made here."""

import tempfile
from pathlib import Path

import pandas

from blis_jax import TraceOptions, read_trace
from blis_jax.traces.__main__ import summary

table = pandas.DataFrame(
    {
        "arrival_s": [0.0, 0.25, 0.25, 1.5],
        "input_tokens": [300, 280, 1200, 90],
        "output_tokens": [20, 35, 8, 100],
        "slo_class": ["critical", "critical", "batch", ""],
    }
)
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "mine.csv"
    table.to_csv(path, index=False)
    trace = read_trace(path, TraceOptions(slo_mix="standard:1"))  # for the one without a class
for name, value in summary(trace).items():
    print(f"{name}: {value}")
