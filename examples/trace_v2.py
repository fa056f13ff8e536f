"""A TraceV2 trace simulated, and the run written as TraceV2 again."""

import sys
from pathlib import Path

from blis_jax.run import main

output = sys.argv[1] if len(sys.argv) > 1 else "run.csv"  # its header goes beside it
sys.exit(
    main(
        [
            *("--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "2"),
            *("--trace", str(Path(__file__).parent / "traces" / "trace_v2.csv")),
            *("--trace-output", output),
        ]
    )
)
