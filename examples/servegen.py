"""Requests drawn from ServeGen's description of two clients; another seed draws others."""

from pathlib import Path

from blis_jax import TraceOptions, read_trace

folder = Path(__file__).parent / "traces" / "servegen"
for seed in (1, 2):
    rows = read_trace(folder, TraceOptions(seed=seed, limit=100)).rows
    seconds = rows.arrival_us[-1] / 1e6
    print(f"seed {seed}: 100 requests in {seconds:.1f} s from {len(rows.client_names)} clients")
