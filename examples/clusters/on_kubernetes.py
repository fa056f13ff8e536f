"""A grid of runs on workers that Kubernetes starts as pods: pip install dask-kubernetes 'blis-jax[distributed]'."""

from dask_kubernetes.operator import KubeCluster
from distributed import Client

import blis_jax
from blis_jax.runs import scheduler


def main() -> None:
    """Start sixty-four pods of one worker each, run, and print the mean TTFT p99 of each configuration."""
    resources = {"requests": {"cpu": "1", "memory": "2Gi"}}
    pods = {"name": "blis-jax", "image": "blis-jax:latest", "n_workers": 64, "resources": resources}
    configs = [blis_jax.ClusterConfig(num_instances=count) for count in (4, 8)]
    figures = blis_jax.figures_of(["ttft_p99_ms"])
    workload = blis_jax.load_builtin("mixed")
    with KubeCluster(**pods) as cluster, Client(cluster) as client, scheduler.used(client):
        grid = blis_jax.run_grid(configs, workload, range(1024), figures)
    print(grid.to_dataset().mean("seed"))


if __name__ == "__main__":
    main()
