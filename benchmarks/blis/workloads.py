"""Random workload files of BLIS's revision of August 2026, for `lines`."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import yaml

CLASSES = ("critical", "standard", "sheddable", "batch", "background")
OLD_CLASSES = {"critical": "realtime", "standard": "interactive"}
LLAMA = "meta-llama/llama-3.1-8b-instruct"
ZERO = {"type": "constant", "params": {"value": 0}}


class Draw:
    """Two random generators of a line: `shape` is the same for `lines` consecutive lines, `value` is the line's own."""

    def __init__(self, number: int, lines: int) -> None:
        self.shape = random.Random(7_000_021 + number // lines)
        self.value = random.Random(9_000_011 + number)

    def has(self, share: float) -> bool:
        """Draw True with probability `share`, alike for all lines of one shape."""
        return self.shape.random() < share

    def options(
        self,
        table: Mapping[str, tuple[float, tuple[Any, ...]]],
        of_program: frozenset[str],
        without: Set[str] = frozenset(),
    ) -> list[str]:
        """Return the words of the drawn options."""
        words = []
        for name, (share, values) in table.items():
            if self.has(share) and name not in without:
                chosen = (self.shape if name in of_program else self.value).choice(values)
                if isinstance(chosen, tuple):  # values with which the program is one
                    chosen = self.value.choice(chosen)
                words += [f"--{name}", *([str(chosen)] if chosen != "" else [])]
        return words


def workload(draw: Draw, adapters: tuple[str, ...]) -> dict[str, Any]:
    """Return a workload file, some of whose clients ask for the adapters."""
    value = draw.value
    kind = draw.shape.random()
    if kind < 0.06:
        return inference_perf(value)
    has_sessions, has_users = kind < 0.28, 0.28 <= kind < 0.4
    has_classes = draw.has(0.8)
    longest = 4000 if value.random() < 0.15 else 500
    prefix = draw.shape.choice((0, 0, 0.5))
    clients = []
    for index in range(draw.shape.randint(1, 4)):
        client = _client(value, has_classes, longest, prefix) | {"id": f"c{index}"}
        if has_users and value.random() < 0.7:
            client |= {"concurrency": value.randint(1, 12)}
            client |= (
                {"think_time_us": value.choice((0, 1, 30000, 400000))}
                if value.random() < 0.7
                else {}
            )
        else:
            client |= {"rate_fraction": round(value.uniform(0.1, 1), 2), "arrival": _arrival(value)}
        if has_sessions and draw.has(0.7):
            client |= _sessions(value)
        elif not has_users and draw.has(0.15):
            client["lifecycle"] = {"windows": _windows(value)}
        if adapters and value.random() < 0.8:
            client["adapter"] = value.choice(adapters)
            client |= {"model": LLAMA} if value.random() < 0.15 else {}
        clients.append(client)
    drawn: dict[str, Any] = {
        **{"version": "2", "seed": value.randint(1, 99), "clients": clients},
        "category": "reasoning" if has_sessions else "language",
        "aggregate_rate": round(10 ** value.uniform(0.3, 2.5), 2) if value.random() < 0.93 else 1e6,
        "num_requests": value.choice((1, 20, 40, 64)),
    }
    if not has_users and draw.has(0.15):
        drawn["cohorts"] = [_cohort(value, has_classes, has_sessions, prefix)]
    if draw.has(0.08):
        _absolute(value, drawn)
    if draw.has(0.06):
        drawn["version"] = value.choice(("1", "", "3"))
        for client in clients if drawn["version"] != "3" else ():
            client["slo_class"] = OLD_CLASSES.get(client["slo_class"], client["slo_class"])
    if draw.has(0.06):
        drawn["horizon"] = value.choice((1, 500000, 3000000))
    if draw.has(0.08):
        drawn["goodput_slo_targets"] = {value.choice(CLASSES): {"ttft_ms": 200.0, "e2e_ms": 2000.0}}
    return drawn


def _absolute(value: random.Random, drawn: dict[str, Any]) -> None:
    """Give windows their own rates in place of the rate that clients share; some clients' first window gets none."""
    drawn["aggregate_rate"] = 0
    for client in drawn["clients"]:
        if "concurrency" not in client:
            client["lifecycle"] = {"windows": _windows(value)}
            for window in client["lifecycle"]["windows"][value.random() < 0.05 :]:
                window.setdefault("trace_rate", 20.0)
    for cohort in drawn.get("cohorts", ()):
        for name in ("drain", "diurnal") if value.random() < 0.9 else ():
            cohort.pop(name, None)
        spike = {"start_time_us": 200000, "duration_us": 900000}
        cohort["spike"] = cohort.get("spike", spike) | {"trace_rate": 30.5}


def session_free(draw: Draw) -> dict[str, Any]:
    """Return a workload file of clients with rates alone."""
    value = draw.value
    has_classes = value.random() < 0.8
    clients = [
        _client(value, has_classes, 500, 0.4)
        | {
            "id": f"c{index}",
            "rate_fraction": round(value.uniform(0.1, 1), 3),
            "arrival": _arrival(value),
        }
        for index in range(value.randint(1, 3))
    ]
    rate = round(10 ** value.uniform(-1, 3), value.randint(0, 4))
    return {
        "version": value.choice(("2", "1")),
        "seed": 3,
        "category": "language",
        "clients": clients,
        "aggregate_rate": rate,
    }


def _client(value: random.Random, has_classes: bool, longest: int, prefix: float) -> dict[str, Any]:
    client: dict[str, Any] = {
        "tenant_id": value.choice(("a", "b", "")),
        "slo_class": value.choice(CLASSES) if has_classes else "",
        "input_distribution": _law(value, value.choice((1, 20)), longest),
        "output_distribution": _law(value, 1, value.choice((1, 3, 60, 250))),
    }
    if value.random() < prefix:
        client["prefix_group"] = value.choice("gh")
        client |= {"prefix_length": value.choice((0, 16, 100, 250))} if value.random() < 0.8 else {}
    if value.random() < 0.15:
        client["timeout"] = value.choice((0, 1, 20000, 200000, 1000000, 3000000))
    if value.random() < 0.1:
        client["slo_target_us"] = value.choice((0, 50000, 1000000))
    if value.random() < 0.1:
        client["network"] = {"rtt_ms": 3.5, "bandwidth_mbps": value.choice((0.0, 100.0))}
    if value.random() < 0.3:
        client["streaming"] = value.random() < 0.5
    if value.random() < 0.05:
        client["multimodal"] = _images(value)
    return client


def _law(value: random.Random, least: int, most: int) -> dict[str, Any]:
    mean = value.randint(least, max(least, most))
    normal = {"mean": mean, "std_dev": max(1, mean // 4), "min": max(1, mean // 8), "max": 2 * mean}
    log = {
        **{"mu": round(math.log(mean), 3), "sigma": round(value.uniform(0.1, 0.9), 3)},
        **{"min": 1, "max": 4 * mean},
    }
    pareto = {
        **{
            "alpha": round(value.uniform(1.5, 3), 2),
            "xm": max(2, mean // 3),
            "mu": round(math.log(mean), 2),
        },
        **{
            "sigma": round(value.uniform(0.1, 0.7), 2),
            "mix_weight": round(value.uniform(0.05, 0.5), 2),
        },
    }
    laws = {
        **{
            "gaussian": normal,
            "exponential": {"mean": mean},
            "constant": {"value": mean},
            "lognormal": log,
        },
        "empirical": {str(max(1, mean // 2)): 0.3, str(mean + 1): 0.5, str(2 * mean + 2): 0.2},
        "pareto_lognormal": pareto,
    }
    name = value.choice(("gaussian", "constant", *laws))
    return {"type": name, "params": laws[name]}


def _arrival(value: random.Random) -> dict[str, Any]:
    process = value.choice(("poisson", "poisson", "gamma", "weibull", "constant"))
    if process not in ("gamma", "weibull"):
        return {"process": process}
    if value.random() < 0.2:
        shape = round(value.uniform(0.3, 3), 2)
        return {"process": process, "shape": shape, "scale": round(value.uniform(5000, 60000), 1)}
    return {"process": process, "cv": round(value.uniform(0.3, 4), 2)}


def _images(value: random.Random) -> dict[str, Any]:
    counts = [{"type": "constant", "params": {"value": value.randint(0, 3)}} for _ in range(3)]
    drawn: dict[str, Any] = {"text_distribution": _law(value, 1, 100)}
    for kind, count in zip(("image", "audio", "video"), counts, strict=True):
        is_there = value.random() < 0.5
        drawn[f"{kind}_distribution"] = _law(value, 10, 200) if is_there else ZERO
        drawn[f"{kind}_count_distribution"] = count if is_there else ZERO
    return drawn


def _sessions(value: random.Random) -> dict[str, Any]:
    turns = {
        "max_rounds": value.randint(1, 6),
        "think_time_us": value.choice((0, 1, 1000, 200000, 1000000)),
        "context_growth": value.choice(("accumulate", "accumulate", "")),
        "single_session": value.random() < 0.2,
    }
    ratio = value.choice((
        *({"type": "constant", "params": {"value": share}} for share in (0, 0, 20, 50)),
        {"type": "gaussian", "params": {"mean": 40, "std_dev": 20, "min": 0, "max": 100}},
    ))  # fmt: skip
    closed = {"closed_loop": value.random() < 0.5} if value.random() < 0.4 else {}
    return {"reasoning": {"reason_ratio_distribution": ratio, "multi_turn": turns}, **closed}


def _windows(value: random.Random) -> list[dict[str, Any]]:
    steps = (
        value.choice((0, 1, 100000, 700000)) + value.randint(1, 2000000)
        for _ in range(2 * value.randint(1, 3))
    )
    ends = list(itertools.accumulate(steps))
    windows: list[dict[str, Any]] = [
        {"start_us": start, "end_us": end} for start, end in zip(ends[::2], ends[1::2], strict=True)
    ]
    for window in windows:
        window |= {"trace_rate": round(value.uniform(5, 60), 1)} if value.random() < 0.7 else {}
        window |= {"arrival": _arrival(value)} if value.random() < 0.3 else {}
        window |= {"input_distribution": _law(value, 20, 300)} if value.random() < 0.3 else {}
        window |= {"output_distribution": _law(value, 1, 90)} if value.random() < 0.3 else {}
    return windows


def _cohort(
    value: random.Random, has_classes: bool, has_sessions: bool, prefix: float
) -> dict[str, Any]:
    cohort = _client(value, has_classes, 400, prefix) | {
        "id": "co",
        "population": value.randint(1, 4),
    }
    cohort |= {"rate_fraction": round(value.uniform(0.2, 1), 2), "arrival": _arrival(value)}
    kind = value.random()
    if kind < 0.25:
        cohort["spike"] = {
            "start_time_us": value.randint(0, 2000000),
            "duration_us": value.randint(1, 3000000),
        }
    elif kind < 0.5:
        cohort["drain"] = {
            "start_time_us": value.randint(0, 3000000),
            "ramp_duration_us": value.randint(500000, 3000000),
        }
    elif kind < 0.75:
        cohort["diurnal"] = {
            "peak_hour": value.randint(0, 23),
            "peak_to_trough_ratio": round(value.uniform(1, 5), 1),
        }
    if "prefix_group" in cohort and value.random() < 0.6:
        cohort["prefix_sharing"] = value.choice(("shared", "per_member"))
    if has_sessions and value.random() < 0.5:
        cohort |= _sessions(value)
    return cohort


def inference_perf(value: random.Random) -> dict[str, Any]:
    """Return a workload file in the form of inference-perf."""
    stages = [
        {"rate": round(value.uniform(2, 30), 1), "duration": value.randint(1, 6)}
        for _ in range(value.randint(1, 2))
    ]
    shared = {
        **{
            "num_unique_system_prompts": value.randint(1, 3),
            "num_users_per_system_prompt": value.randint(1, 3),
        },
        **{"system_prompt_len": value.choice((0, 1, 128)), "question_len": value.choice((1, 200))},
        **{"output_len": value.choice((1, 80)), "enable_multi_turn_chat": value.random() < 0.5},
    }
    perf = {"stages": stages, "shared_prefix": shared}
    return {
        "version": "1",
        "seed": value.randint(1, 99),
        "num_requests": value.choice((40, 100)),
        "inference_perf": perf,
    }


# --- files of policies and node pools --------------------------------------------------------------


GPUS = ("H100", "A100-SXM", "A100-80", "L40S")


def policies(draw: Draw, path: Path) -> None:
    """Write a file of policies, tenants' budgets, node pools and an autoscaler."""
    value, chosen = draw.value, dict[str, Any]()
    if draw.has(0.5):
        name = draw.shape.choice(("tier-shed", "gaie-legacy", "token-bucket", "always-admit"))
        priority = value.choice((-2, 0, 3, 4))
        full = {
            "gaie_qd_threshold": value.choice((0.5, 4.0)),
            "gaie_kv_threshold": value.choice((0.1, 0.5)),
        }
        refill = value.choice((100.0, 9000.0))
        numbers = {
            "tier-shed": {
                "tier_shed_threshold": value.choice((0, 3, 20)),
                "tier_shed_min_priority": priority,
            },
            "gaie-legacy": full,
            "token-bucket": {"token_bucket_capacity": 4000.0, "token_bucket_refill_rate": refill},
        }
        chosen["admission"] = {"policy": name, **numbers.get(name, {})}
        if draw.has(0.5):
            priorities = {name: value.randint(-9, 9) for name in value.sample(CLASSES, 2)}
            chosen["admission"]["slo_priorities"] = priorities
        if draw.has(0.3):
            chosen["admission"]["slo_targets"] = {"critical": 90000, "batch": 700000}
    if draw.has(0.3):
        chosen["tenant_budgets"] = {
            "a": value.choice((0, 0.002, 0.02)),
            "b": value.choice((0.001, 1)),
        }
    chosen |= {"scheduler": "priority-fcfs"} if draw.has(0.2) else {}
    chosen |= {"preemption": {"policy": "priority"}} if draw.has(0.2) else {}
    if draw.has(0.3):
        chosen["routing"] = {
            "policy": "weighted",
            "scorers": [{"name": "queue-depth", "weight": 1.5}],
        }
    if draw.has(0.35):
        chosen |= _nodes(draw)
    path.write_text(yaml.safe_dump(chosen or {"scheduler": "fcfs"}))


def _nodes(draw: Draw) -> dict[str, Any]:
    value = draw.value
    pool: dict[str, Any] = {
        "name": "p",
        "gpu_type": value.choice(GPUS),
        "gpu_memory_gib": 80.0,
        "cost_per_hour": 3.0,
    }
    pool |= {
        "gpus_per_node": draw.shape.choice((2, 4, 8)),
        "initial_nodes": draw.shape.randint(1, 3),
    }
    pool |= {"min_nodes": 1, "max_nodes": 4}
    other = {"name": "q", "gpu_type": value.choice(GPUS), "cost_per_hour": value.choice((1.0, 9.0))}
    pools = [pool, pool | other] if draw.has(0.3) else [pool]
    loading = {"mean": value.choice((0.0, 0.5, 2.0)), "stddev": value.choice((0.0, 0.1))}
    nodes: dict[str, Any] = {
        "node_pools": pools,
        "instance_lifecycle": {
            "loading_delay": loading,
            "warm_start_initial_instances": draw.has(0.7),
        },
    }
    if draw.has(0.6):
        limits = {"scale_down_boundary": 0.3, "scale_up_threshold": 0.7}
        limits |= {"avg_input_tokens": 90.0} if draw.has(0.3) else {}
        steady = {
            "scale_up_stabilization_window_us": 200000,
            "scale_down_stabilization_window_us": 600000,
        }
        nodes["autoscaler"] = {
            "interval_us": value.choice((100000, 250000, 500000)),
            "hpa_scrape_delay": {"mean": value.choice((0.0, 0.1))},
            "analyzer": {"kv_cache_threshold": value.choice((0.01, 0.05)), **limits},
            **(steady if draw.has(0.3) else {}),
        }
    return nodes
