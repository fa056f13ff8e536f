"""A CSV trace of BLIS: what prompts share follows from their tokens, at any block size."""

from pathlib import Path

from blis_jax import read_trace, to_table

trace = read_trace(Path(__file__).parent / "traces" / "blis.csv")
for block_size in (8, 16, 32):
    table, _ = to_table(trace.rows, block_size)
    print(f"blocks of {block_size}: {int(table.node_blocks.sum())} blocks have several holders")
