"""The clusters, workloads and arms of the example and of the hand-over, and where their published numbers are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.errors import ConfigError
from blis_jax.latency.registry import lookup
from blis_jax.workload.spec import WorkloadSpec, load_spec
from sweeps.evolve.go.reader import policy_of
from sweeps.evolve.go.source import read

DATA = "../shared/data/openevolve_blis_router"
METRICS = ("e2e_mean_ms", "e2e_p95_ms")
CLASSES = ("critical", "standard", "batch")
ROUTERS = str(Path(__file__).with_name("routers.py"))
SCORERS = "prefix-affinity:1,load-balance:1"
HANDED_OVER, HAND_MADE = "handed over", "hand-made"
FORK = "skydiscover_64434fb"
FOLDERS = {"A/B": "a_cbc54d58", "C": "c_skydiscover_aab823a", "D": "d_b859a642"}
ORACLES = {"A/B": "oracle_b", "C": "oracle_c", "D": "oracle_d"}
EXAMPLE_WORKLOADS = ("cache_warmup", "load_spikes", "multiturn")
WEIGHTED = {
    "baseline": SCORERS,
    "prefix-only": "prefix-affinity:1,load-balance:0.01",
    "load-only": "prefix-affinity:0.01,load-balance:1",
}
HANDED_OVER_ARMS = {
    "1_1": "weighted",
    "evolved": "winner",
    "lor": "lor",
    "glia": "glia",
    "llq": "llq",
}
HANDED_OVER_WORKLOADS = ("glia_40qps", "glia_prefix_heavy")
TWO_SEEDS, ONE_SEED = (42, 456), (42,)
NEW_SEEDS = tuple(range(1000, 1020))
VERSIONS = range(1, 10)  # of the hand-made routers that have published numbers


@dataclass(frozen=True)
class ArmsOnWorkload:
    """A workload of a set with its arms; the first arm is compared with the others."""

    set: str
    workload: str
    path: Path
    seeds: tuple[int, ...]  # of the published numbers
    arms: Mapping[str, ClusterConfig]
    slow: tuple[str, ...] = ()  # arms that are run on the published seeds alone

    @property
    def spec(self) -> WorkloadSpec:
        """Return the workload."""
        return load_spec(self.path)


def data_folder(named: str | None) -> Path:
    """Return the folder of published data.

    Raises:
        ConfigError: it is not there.
    """
    folder = Path(named or DATA)
    if not (folder / "go_runs.json").is_file():
        raise ConfigError(
            f"--data {folder}: no go_runs.json; give the folder of the example's workloads and published numbers"
        )
    return folder


def _routed(policy: str) -> dict[str, str]:
    name = policy if policy == "weighted" or ".py:" in policy else f"{ROUTERS}:{policy}"
    return {"routing_policy": name}


def _example_cluster(**settings: Any) -> ClusterConfig:
    fit = lookup("meta-llama/llama-3.1-8b-instruct", "H100", 2)
    return _fitted(fit, num_instances=4, **settings)


def _later_cluster(**settings: Any) -> ClusterConfig:
    """Return BLIS of 11 March 2026: August's rules, the linear law, signals of load 5 s old."""
    fit = lookup("qwen/qwen2.5-7b-instruct", "H100", 1, "vllm/vllm-openai:v0.11.0")
    rules: dict[str, Any] = {"revision": AUGUST, "latency_model": "blackbox"}
    aged = {"snapshot_refresh_interval": 5_000_000, "routing_scorers": SCORERS}
    return _fitted(fit, num_instances=4, **rules, **aged, **settings)


def _fitted(fit: Any, **settings: Any) -> ClusterConfig:
    return ClusterConfig(
        model=fit.model, hardware=fit.gpu, tp=fit.tp, alpha_coeffs=fit.alpha, beta_coeffs=fit.beta,
        total_kv_blocks=fit.total_kv_blocks, **settings,
    )  # fmt: skip


def groups(
    data: Path, programs: Path | None = None, made: Path | None = None
) -> Iterator[ArmsOnWorkload]:
    """Yield the groups to run: the example's three sets, the hand-over and, with `programs`, its Go functions."""
    for name, folder in FOLDERS.items():
        arms = {
            arm: _example_cluster(routing_policy="weighted", routing_scorers=scorers)
            for arm, scorers in WEIGHTED.items()
        }
        oracle = _example_cluster(routing_scorers=SCORERS, **_routed(ORACLES[name]))
        bad = _example_cluster(**_routed("sabotaged"))
        for workload in EXAMPLE_WORKLOADS:
            is_later = name == "A/B" and workload == "multiturn"
            place = data / "workloads" / ("a_bfb0d100" if is_later else folder)
            yield ArmsOnWorkload(
                name, workload, place / f"workload_v2_{workload}.yaml", ONE_SEED,
                {**arms, "oracle": oracle, "sabotaged": bad}, ("sabotaged",),
            )  # fmt: skip
    of_fork = data / FORK / "blis_router" / "workloads"
    handed = {arm: _later_cluster(**_routed(name)) for arm, name in HANDED_OVER_ARMS.items()}
    read_ = {} if programs is None or made is None else read_programs(programs, made)
    winner = {"evolved, read from Go": read_["best_program"]} if "best_program" in read_ else {}
    for workload in HANDED_OVER_WORKLOADS:
        path = of_fork / f"workload_{workload}.yaml"
        yield ArmsOnWorkload(HANDED_OVER, workload, path, TWO_SEEDS, handed | winner, (*winner,))
    by_version = {name: config for name, config in read_.items() if name.startswith("oracle_v")}
    if by_version:
        path = of_fork / "workload_glia_40qps.yaml"
        yield ArmsOnWorkload(HAND_MADE, "glia_40qps", path, TWO_SEEDS, by_version, (*by_version,))


def handed_over(data: Path) -> tuple[ClusterConfig, dict[str, WorkloadSpec]]:
    """Return the cluster of the hand-over with the winner as its router, and its workloads."""
    folder = data / FORK / "blis_router" / "workloads"
    workloads = {
        name: load_spec(folder / f"workload_{name}.yaml") for name in HANDED_OVER_WORKLOADS
    }
    return _later_cluster(**_routed(HANDED_OVER_ARMS["evolved"])), workloads


def read_programs(folder: Path, made: Path) -> dict[str, ClusterConfig]:
    """Read the Go files of the winner and of the hand-made routers below `folder`; write their policies to `made`.

    Raises:
        ConfigError: none of these files is there, or one cannot be read.
    """
    wanted = ("best_program", *(f"oracle_v{version}" for version in VERSIONS))
    made.mkdir(parents=True, exist_ok=True)
    clusters: dict[str, ClusterConfig] = {}
    for path in sorted(folder.rglob("*.go")):
        name = next((program for program in wanted if path.stem.endswith(program)), None)
        if name is None or "admission" in str(path):
            continue
        (made / f"{name}.py").write_text(policy_of(read(path), name), encoding="utf-8")
        clusters[name] = _later_cluster(**_routed(f"{made / name}.py:route"))
    if not clusters:
        raise ConfigError(
            f"--programs {folder}: none of {', '.join(wanted)} is there as a .go file"
        )
    return clusters


# --- published ------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _go_runs(data: Path) -> dict[str, Any]:
    runs: dict[str, Any] = json.loads((data / "go_runs.json").read_text())
    return runs


def published(data: Path, group: ArmsOnWorkload, arm: str) -> dict[tuple[str, str], float]:
    """Return published numbers of an arm by seed, or `mean` of the seeds, and metric."""
    runs = _go_runs(data)
    if group.set == HANDED_OVER:
        by_seed = runs["handed_over"][arm.partition(",")[0]][group.workload]
        return {(seed, name): by_seed[seed][name] for seed in by_seed for name in METRICS}
    if group.set == HAND_MADE:
        path = data / FORK / "oracle_results" / f"{arm}_results.json"
        figures = json.loads(path.read_text())["results"][group.workload]["qwen_7b"]
        return {("mean", METRICS[0]): figures["e2e_ms"], ("mean", METRICS[1]): figures["p95_ms"]}
    figures = runs["sets"][group.set]["arms"][arm][group.workload]
    return {("42", name): figures[name] for name in METRICS}
