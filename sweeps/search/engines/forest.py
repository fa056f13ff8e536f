"""Search with extra trees in place of a Gaussian process: cheap where there are thousands of points."""

from __future__ import annotations

from sweeps.search.engines.gp import GaussianProcess


class Forest(GaussianProcess):
    """Batches where a forest of extremely random trees expects most."""

    model = "ET"
