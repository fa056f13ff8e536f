"""An Azure trace at twice its pace, with classes and a system prompt that the trace does not have."""

import sys
from pathlib import Path

from blis_jax.run import main

trace = Path(__file__).parent / "traces" / "azure.csv"
sys.exit(
    main(
        [
            *("--model", "meta-llama/llama-3.1-8b-instruct", "--num-instances", "2"),
            *("--trace", str(trace), "--time-scale", "0.5", "--seed", "1"),
            *("--slo-mix", "critical:0.2,standard:0.5,sheddable:0.3"),
            *("--prefix-model", "shared:64"),
        ]
    )
)
