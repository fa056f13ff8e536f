"""A Mooncake trace on four instances: routing by prefix against taking turns."""

from pathlib import Path

from blis_jax import ClusterConfig, cache_hit_rate, read_trace, simulate, to_table

trace = read_trace(Path(__file__).parent / "traces" / "mooncake.jsonl")
table, _ = to_table(trace.rows, block_size=16)  # 512-token hash blocks become KV blocks of 16
for policy in ("round-robin", "prefix-affinity"):
    config = ClusterConfig(num_instances=4, routing_policy=policy)
    run = simulate(config, table)
    mean_ms = run.requests.ttft_us.mean() / 1000
    print(f"{policy}: mean TTFT {mean_ms:.1f} ms, cache hit rate {cache_hit_rate(run):.3f}")
