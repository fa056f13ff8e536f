"""A BurstGPT trace whose conversations are taken to repeat all that was said before."""

from pathlib import Path

from blis_jax import TraceOptions, read_trace

path = Path(__file__).parent / "traces" / "burstgpt.csv"
trace = read_trace(path, TraceOptions(prefix_model="sessions"))
print(f"{len(trace.rows)} requests in {len(trace.rows.session_names)} sessions")
for note in trace.report.notes:
    print(note)
