"""A Vidur trace turned into our own format, on standard output."""

import tempfile
from pathlib import Path

from blis_jax import read_trace, write_trace

trace = read_trace(Path(__file__).parent / "traces" / "vidur.csv")
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "plain.csv"
    write_trace(trace.rows, path, "plain")
    print(path.read_text(), end="")
