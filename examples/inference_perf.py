"""A workload in the form of inference-perf under the rules of both BLIS revisions, and as a TraceV2 file."""

import sys
from pathlib import Path

from blis_jax import load_spec, read_trace, to_table
from blis_jax.traces.write import write_drawn
from blis_jax.workload.reference import drawn

path = Path(__file__).parent / "inference_perf.yaml"
for revision in ("blis-2026-02", "blis-2026-08"):
    spec = load_spec(path, revision)
    workload = drawn(spec, seed=1)
    classes = ", ".join(spec.slo_classes)
    print(
        f"{revision}: {len(workload.clients)} clients, classes {classes}, "
        f"{len(workload.requests)} requests"
    )

output = sys.argv[1] if len(sys.argv) > 1 else "run.csv"  # its header goes beside it
write_drawn(output, workload)
rows = read_trace(output).rows
table, _ = to_table(rows, 16)
contents = int((table.node_blocks > 0).sum())
print(f"{len(rows)} rows read back, prompts begin with {contents} shared contents")
