"""A grid of runs on workers that Slurm starts as jobs: pip install dask-jobqueue 'blis-jax[distributed]'."""

from dask_jobqueue import SLURMCluster
from distributed import Client

import blis_jax
from blis_jax.runs import scheduler


def main() -> None:
    """Start four jobs of sixteen workers each, run, and print the mean TTFT p99 of each configuration."""
    job = {"cores": 16, "processes": 16, "memory": "32GB", "walltime": "01:00:00"}
    configs = [blis_jax.ClusterConfig(num_instances=count) for count in (4, 8)]
    figures = blis_jax.figures_of(["ttft_p99_ms"])
    workload = blis_jax.load_builtin("mixed")
    with SLURMCluster(**job) as cluster, Client(cluster) as client:
        cluster.scale(jobs=4)
        with scheduler.used(client):
            grid = blis_jax.run_grid(configs, workload, range(1024), figures)
    print(grid.to_dataset().mean("seed"))


if __name__ == "__main__":
    main()
