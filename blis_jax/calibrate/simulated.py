"""The measured requests simulated: latencies and their derivatives for given coefficients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blis_jax.calibrate.fit import Latencies
from blis_jax.calibrate.intervals.posterior import coefficients_of, model_of
from blis_jax.calibrate.measured_run import MeasuredRun
from blis_jax.cluster.config import ClusterConfig
from blis_jax.core.outcome import WHOLE
from blis_jax.errors import ConfigError
from blis_jax.results.records import Status
from blis_jax.runs.derivatives import Differentiator, Repeated


class Simulator:
    """Runs the requests of a measured run; only the named terms have derivatives.

    Times are continuous: whole microseconds are the reference's, not a server's, and derivatives are
    exact without them.
    """

    def __init__(
        self,
        run: MeasuredRun,
        config: ClusterConfig,
        terms: Sequence[str],
        fixed: dict[str, float] | None = None,
    ) -> None:
        """`fixed` are terms that are not fitted; those without a value are 0."""
        from blis_jax.runs.simulation import Options
        from blis_jax.traces.to_table import to_table

        self.run, self.config, self.terms, self.fixed = run, config, tuple(terms), dict(fixed or {})
        self.table, _ = to_table(run.rows, config.block_size_in_tokens)
        self.differentiator = Differentiator(self.terms, Options(clock="continuous"))

        self.repeated: Repeated | None = None  # once the sizes of the run are known

    def _given(self, values: np.ndarray) -> dict[str, float]:
        return {**self.fixed, **dict(zip(self.terms, values.tolist(), strict=True))}

    def configured(self, values: np.ndarray) -> ClusterConfig:
        """The cluster with these coefficients."""
        given = self._given(values)
        alpha, beta = coefficients_of(given)
        model = model_of(given)
        return self.config.replace(alpha_coeffs=alpha, beta_coeffs=beta, latency_model=model)

    def __call__(self, values: np.ndarray) -> Latencies:
        """One run; every request must come to its end in it."""
        if self.repeated is not None:
            again = self.repeated(*coefficients_of(self._given(values)))
            if again is not None:
                return Latencies(again.ttft_us, again.e2e_us, again.d_ttft.T, again.d_e2e.T)
        found = self._whole(values)
        if self.repeated is None or self.repeated.is_outgrown:
            self.repeated = self.differentiator.repeated(self.configured(values), self.table)
        return found

    def _whole(self, values: np.ndarray) -> Latencies:
        """The same by way of a record, which says what went wrong."""
        found = self.differentiator.run(self.configured(values), self.table)
        record, requests = found.record, found.record.requests
        if record.outcome not in WHOLE:
            raise ConfigError(
                f"the simulation ended with {record.outcome.name}; check the KV blocks and the batch "
                "size against those of the measured server"
            )
        left_out = int(np.sum(requests.status != Status.COMPLETED))
        if left_out:
            raise ConfigError(
                f"{left_out} requests do not finish in the simulation, the first is number "
                f"{int(np.flatnonzero(requests.status != Status.COMPLETED)[0])}; its prompt needs more "
                "KV blocks than --total-kv-blocks gives"
            )
        return Latencies(
            requests.ttft_us.astype(np.float64),
            requests.e2e_us.astype(np.float64),
            found.ttft_us.T,
            found.e2e_us.T,
        )
