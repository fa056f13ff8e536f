"""Simulate the differences of a real cluster (concerns): the rows of Map C, and the scenes of hypotheses.

A concern changes the configuration, or the workload, of every arm alike. A concern that the engine cannot simulate yet
has a reason in place of a change. A scene is a workload with a concern.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from blis_jax.cluster.config import ClusterConfig
from blis_jax.cluster.revisions import ROUTER_SIGNALS, SCRAPE_US, seen_as
from blis_jax.errors import ConfigError, choices
from blis_jax.files.atomic_write import fingerprint
from blis_jax.policies.scorers import APPROXIMATE_BLOCK_TOKENS
from blis_jax.workload.spec import WorkloadSpec, override
from sweeps.promote.llmd import deployment
from sweeps.promote.maps import GapRow, rows_of
from sweeps.promote.promotion import Promotion
from sweeps.runs.requests import workload_from

NOT_YET = "not simulated yet"
EVENT_DELAY_US = 20_000  # KV events over ZMQ; the lag is not specified
SLOWER = 1.5  # step time of the slower half of mixed GPUs ÷ that of the others

_SCRAPES = {"load_refresh_interval": SCRAPE_US, "snapshot_refresh_interval": SCRAPE_US}

TARGET_PROFILE = ROUTER_SIGNALS[0]  # the signals of the target's own scheduler

Change = Callable[["ClusterConfig", "WorkloadSpec"], "ClusterConfig"]
ChangeWorkload = Callable[["WorkloadSpec"], "WorkloadSpec"]


@dataclass(frozen=True)
class Concern:
    """Describe a difference of a real cluster; without a change, `about` says what the engine lacks to simulate it."""

    name: str
    gap: str  # the row of Map C
    title: str
    about: str
    change: Change | None = None
    change_workload: ChangeWorkload | None = None

    @property
    def is_simulated(self) -> bool:
        """Return whether the engine can simulate the concern."""
        return self.change is not None or self.change_workload is not None

    def applied(
        self, config: ClusterConfig, spec: WorkloadSpec
    ) -> tuple[ClusterConfig, WorkloadSpec]:
        """Return the configuration and the workload with the concern applied.

        Raises:
            ConfigError: the concern is not simulated yet, or does not fit this configuration.
        """
        if not self.is_simulated:
            raise ConfigError(f"concern {self.name}: {NOT_YET}: {self.about}")
        changed = config if self.change is None else self.change(config, spec)
        return changed, spec if self.change_workload is None else self.change_workload(spec)


def _settings(**changes: Any) -> Change:
    return lambda config, spec: config.replace(**changes)


def _mixed_gpus(config: ClusterConfig, spec: WorkloadSpec) -> ClusterConfig:
    """Make half of the instances slower; leave a configuration that lists instances as it is."""
    if config.instances:
        return config
    slow = config.num_instances // 2
    if not slow:
        raise ConfigError("mixed GPUs need two instances or more; the strategy has one")
    if not config.beta_coeffs:
        raise ConfigError(f"latency_model {config.latency_model} has no coefficients to slow down")
    groups = [
        {"name": "fast", "count": config.num_instances - slow},
        {"name": "slow", "count": slow, "beta": [SLOWER * value for value in config.beta_coeffs]},
    ]
    return config.replace(instances=groups)


def _arrival_seconds(spec: WorkloadSpec) -> float:
    """Return the approximate time during which requests arrive, in s."""
    if spec.horizon:
        return spec.horizon / 1e6
    return spec.num_requests / (spec.aggregate_rate or 1.0)


def _outages(config: ClusterConfig, spec: WorkloadSpec) -> ClusterConfig:
    """Let instances fail at random: about two failures while requests arrive, each lasting two fifths of that time."""
    seconds = _arrival_seconds(spec)
    return config.replace(
        cluster_policy="outages",
        outages_mtbf_s=seconds * config.num_instances / 2,
        outages_mttr_s=0.4 * seconds,
        outages_start_up_s=0.0,
        outages_reroute_ms=50.0,
    )


def _late_half(config: ClusterConfig, spec: WorkloadSpec) -> ClusterConfig:
    """Start half of the instances late, with empty caches, after two fifths of the time in which requests arrive."""
    half = config.num_instances // 2
    if not half:
        raise ConfigError("a late half needs two instances or more; the strategy has one")
    return config.replace(
        cluster_policy="autoscaler",
        autoscaler_first_instances=config.num_instances - half,
        autoscaler_interval_s=0.4 * _arrival_seconds(spec),
        autoscaler_target_load=1e-6,  # any load asks for all instances at the second decision
        autoscaler_start_up_s=0.0,
    )


def _behind_the_detector(num_stale: int) -> Change:
    """Return the change by which the router's default detector sheds sheddable requests, by scraped metrics."""

    def change(config: ClusterConfig, spec: WorkloadSpec) -> ClusterConfig:
        """Return the cluster behind the detector; refuse a strategy with an admission policy of its own."""
        if config.admission_policy != "always-admit":
            raise ConfigError(
                f"admission_policy {config.admission_policy} is the strategy's own; the detector would replace it"
            )
        if num_stale >= config.num_instances:
            raise ConfigError(f"{num_stale} of {config.num_instances} instances cannot be stale")
        gate = {"admission_policy": "stale-gated", "stale_gated_num_stale": num_stale}
        return config.replace(**_SCRAPES, **gate)

    return change


def _pools(prefill: int, decode: int) -> Change:
    """Return a change that splits the instances in this ratio into a prefill pool and a decode pool."""

    def change(config: ClusterConfig, spec: WorkloadSpec) -> ClusterConfig:
        """Return the cluster in two pools; refuse instances that differ or are too few."""
        count = config.num_instances * prefill // (prefill + decode)
        if config.instances or not count:
            least = prefill + decode
            raise ConfigError(
                f"roles need {least} equal instances or more; the strategy has others"
            )
        groups = [
            {"count": count, "role": "prefill"},
            {"count": config.num_instances - count, "role": "decode"},
        ]
        return config.replace(instances=groups, hand_over_policy="pools", corrected=True)

    return change


def _blocks_of_the_target(config: ClusterConfig, spec: WorkloadSpec) -> ClusterConfig:
    """Make KV blocks as large as the target's, and keep the size of the memory."""
    share = config.block_size_in_tokens / APPROXIMATE_BLOCK_TOKENS
    return config.replace(
        block_size_in_tokens=APPROXIMATE_BLOCK_TOKENS,
        total_kv_blocks=int(config.total_kv_blocks * share),
        kv_cpu_blocks=int(config.kv_cpu_blocks * share),
    )


def _longer_tails(spec: WorkloadSpec) -> WorkloadSpec:
    """Give answers a lognormal law with the same means: most answers are short, a few are very long."""
    return override(spec, clients=[_with_tail(client.model_dump()) for client in spec.clients])


def _with_tail(client: Mapping[str, Any]) -> dict[str, Any]:
    law = client["output_distribution"]
    mean = (
        law["params"].get("mean", law["params"].get("value"))
        if isinstance(law["params"], dict)
        else None
    )
    if mean is None:
        raise ConfigError(f"answers of law {law['type']} have no mean that another law could keep")
    tail = {"type": "exponential", "params": {"mean": float(mean)}}
    if law["type"] == "exponential":
        tail = {"type": "pareto_lognormal", "params": _heavy(float(mean))}
    return dict(client) | {"output_distribution": tail}


def _heavy(mean: float) -> dict[str, float]:
    sigma = 1.2
    return {
        "alpha": 2.5, "xm": mean * 1.5 / 2.5, "mu": math.log(mean) - sigma**2 / 2, "sigma": sigma,
        "mix_weight": 0.2,
    }  # fmt: skip


# --- by row of Map C ------------------------------------------------------------------------------

_IN_CODE: Mapping[str, tuple[str, Change | None, ChangeWorkload | None]] = {
    "mixed-gpus": ("every step of half of the instances takes 1.5 times as long", _mixed_gpus, None),
    "stale-is-saturated": (
        "the router's detector turns sheddable requests away at saturation 1; the metrics of one instance never come, "
        "so it counts as full; those of the others are up to 50 ms old", _behind_the_detector(1), None,
    ),
    "start-up": (
        "half of the instances come up after two fifths of the time in which requests arrive, with empty caches; their "
        "first steps are as fast as the later ones, since the engine has no warm-up", _late_half, None,
    ),
    "pod-failure": (
        "instances fail at random, about two while requests arrive; their queues are routed again after 50 ms",
        _outages, None,
    ),
    "pd-roles": (
        "a quarter of the instances computes prompts, their KV then goes to the others; without BLIS's defects, by "
        "which steps of one instance overlap", _pools(1, 3), None,
    ),
    "prefix-block-64": (
        "blocks of 64 tokens in index and cache, the memory as large as before", _blocks_of_the_target, None,
    ),
    "real-output-lengths": (
        "answers of the same mean with a heavier tail: exponential ones become a mix of Pareto and lognormal",
        None, _longer_tails,
    ),
}  # fmt: skip
_MISSING = {
    "lora-affinity": "no scene has requests for adapters",
    "client-retries": "the engine can give a request up at a deadline, but none that was given up or turned away comes "
    "back",
}
_VARIANTS = (
    Concern(
        "inconsistent-snapshots", "metric-staleness", "Snapshots that contradict each other",
        "metrics up to 50 ms old, each endpoint looked at times of its own",
        _settings(**_SCRAPES, snapshot_phases="drawn"),
    ),
    Concern(
        "no-books", "concurrent-scheduling", "Old metrics, and no count of requests in flight",
        "metrics up to 50 ms old, and what was sent since the last look is not known",
        _settings(**_SCRAPES, in_flight_counts=False),
    ),
    Concern(
        "event-delay", "concurrent-scheduling", "Cache events arrive late",
        "the router's prefix index knows of a prompt 20 ms after it was sent",
        _settings(prefix_index_delay=EVENT_DELAY_US),
    ),
    Concern(
        "four-replicas", "epp-replicas", "Four replicas of the endpoint picker",
        "each knows what it has sent itself, and of the others what metrics up to 50 ms old show",
        _settings(**_SCRAPES, num_gateways=4),
    ),
    Concern(
        "blind-replicas", "epp-replicas", "Two replicas, and no count of requests in flight",
        "metrics up to 50 ms old, and no replica knows what it has sent since the last look",
        _settings(**_SCRAPES, num_gateways=2, in_flight_counts=False),
    ),
    Concern(
        "detector", "stale-is-saturated", "The same detector without a stale scrape",
        "sheddable requests are turned away at saturation 1, by metrics up to 50 ms old", _behind_the_detector(0),
    ),
)  # fmt: skip


def concerns() -> tuple[Concern, ...]:
    """Return the target's own signals as a concern, then a concern per row of Map C, each followed by its variants."""
    all_concerns = [
        Concern(
            TARGET_PROFILE, "", "The signals of the target's own scheduler",
            "metrics up to 50 ms old, each endpoint scraped at times of its own; requests in flight counted at once; "
            "queue-depth sees waiting requests alone; prefixes in blocks of 64 tokens; ties fall at random",
            # August's signals age together, in flight is counted at once, ties are drawn: all but the times are alike
            lambda config, _: config.replace(snapshot_refresh_interval=SCRAPE_US) if config.is_august
            else seen_as(config, TARGET_PROFILE),
        )
    ]  # fmt: skip
    for row in rows_of(GapRow):
        if row.id in _IN_CODE:
            all_concerns.append(Concern(row.id, row.id, row.title, *_IN_CODE[row.id]))
        elif row.simulate:
            about = ", ".join(f"{name} {value}" for name, value in row.simulate.items())
            all_concerns.append(
                Concern(row.id, row.id, row.title, about, _settings(**row.simulate))
            )
        else:
            all_concerns.append(
                Concern(row.id, row.id, row.title, _MISSING.get(row.id, row.simulated))
            )
        all_concerns += [variant for variant in _VARIANTS if variant.gap == row.id]
    return tuple(all_concerns)


def in_pools(prefill: int, decode: int) -> Concern:
    """Return the concern that splits instances into pools in the ratio of a baseline scenario's pods."""
    name = f"{prefill} prefill to {decode} decode"
    return Concern(name, "pd-roles", "Pods with roles", "prompts move", _pools(prefill, decode))


def concern_named(name: str) -> Concern:
    """Return the concern with this name.

    Raises:
        ConfigError: no concern has this name.
    """
    known = {concern.name: concern for concern in concerns()}
    if name not in known:
        raise ConfigError(f"concern {name!r} is no row of Map C; {choices(name, known)}")
    return known[name]


@dataclass(frozen=True)
class SimulatedScene:
    """Hold a workload with a concern: what differs from the simulation that found the strategy."""

    name: str
    workload: str
    spec: WorkloadSpec
    concern: Concern | None = None
    stream: str = "reference"

    @property
    def about(self) -> str:
        """Return the scene in words, such as `workload W with C`."""
        return f"workload {self.workload}" + (f" with {self.concern.name}" if self.concern else "")

    @property
    def key(self) -> str:
        """Return a key that is equal for scenes with the same workload, concern and random stream."""
        content = [self.spec.content(), self.concern.name if self.concern else "", self.stream]
        return fingerprint(content)

    def spec_with_concern(self) -> WorkloadSpec:
        """Return the workload with the concern applied."""
        if self.concern is None or self.concern.change_workload is None:
            return self.spec
        return self.concern.change_workload(self.spec)

    def config_with_concern(self, config: ClusterConfig) -> ClusterConfig:
        """Return a configuration with the concern applied."""
        return config if self.concern is None else self.concern.applied(config, self.spec)[0]

    def rate(self, seconds: float, num_requests: int) -> float:
        """Return the offered requests per second; if the workload sets no rate, `num_requests` over `seconds`."""
        return self.spec.aggregate_rate or num_requests / max(seconds, 1e-6)


def scene_of(
    entry: Mapping[str, Any], name: str, promotion: Promotion, num_requests: int | None
) -> SimulatedScene:
    """Return the scene of a hypothesis.

    Raises:
        ConfigError: the hypothesis cannot be simulated; the sentence says why.
    """
    traffic = entry.get("workload") or {}
    workload = str(traffic.get("name") or promotion.workload_name)
    if workload == promotion.workload_name:
        spec = deployment.workload_of_promotion(promotion, num_requests)
    else:
        folder = promotion.arm.strategy.folder if promotion.arm.strategy else None
        spec = workload_from(workload, folder=folder, num_requests=num_requests, follows=False)
    if traffic.get("rate"):
        spec = override(spec, aggregate_rate=float(traffic["rate"]))
    gap = gap_of(entry)
    if entry.get("track") == "B" and gap is None:
        raise ConfigError(
            f"{NOT_YET}: no row of Map C brings {entry.get('origin')} into a simulation"
        )
    concern = concern_named(gap) if gap else None
    if entry.get("track") == "A":  # what is promoted is judged by the signals that it will have
        concern = concern_named(TARGET_PROFILE)
    if entry.get("pods"):
        concern = in_pools(**entry["pods"])
    if concern is not None:
        for config in (promotion.baseline.config, promotion.arm.config):
            concern.applied(config, spec)
    return SimulatedScene(name, workload, spec, concern)


def gap_of(entry: Mapping[str, Any]) -> str | None:
    """Return the id of the row of Map C that a hypothesis of track B comes from; None if there is none."""
    if entry.get("track") != "B":
        return None
    words = set(re.findall(r"[a-z0-9-]+", str(entry.get("origin"))))
    return next((row.id for row in rows_of(GapRow) if row.id in words), None)
