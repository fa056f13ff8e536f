"""A track on a tiny workload, for tests: two instances, forty requests, three seeds."""

from __future__ import annotations

from pathlib import Path

import yaml

from tests.sweeps.tiny import TINY

STRATEGY = "tiny.yaml"
BASELINE = "tiny.yaml:max_num_scheduled_tokens=600"
PROBLEM = """
name: tiny
question: Which budget?
workload: w.yaml
baseline: "tiny.yaml:max_num_scheduled_tokens=600"
seeds: [42, 43, 44]
objective: "ttft_p99_ms[critical]"
stop_after: 2
constraints:
  - {text: at most one instance, settings: {num_instances: {max: 1}}}
  - {text: has parameters, needs: parameters}
conditions:
  slow: {text: half the rate, rate: 100.0}
criteria:
  - {name: tail, text: shorter, protocol: registered, goal: "ttft_p99_ms <= -1%", each_class: true}
  - {name: served, text: all, protocol: registered, goal: "attainment[critical] >= 0.0"}
  - name: slow tail
    text: shorter
    protocol: later
    goal: "ttft_p99_ms[critical] <= 0%"
    condition: slow
    against: itself
  - {name: gap, text: no gap asked for, protocol: registered, goal: "slo_gap >= 0.0"}
  - {name: impossible, text: never, protocol: registered, goal: "tokens_per_sec >= 500%"}
  - {name: verified, text: confirmed, protocol: later, needs: verdict}
  - {name: consistent, text: the same way, protocol: registered, needs: seeds}
  - {name: judges, text: like it, protocol: registered, needs: people}
"""
ROW = (
    "--strategy",
    STRATEGY,
    "--hypothesis",
    "A budget of 2048 tokens does not lose anybody.",
    "--predict",
    "num_completed >= -1%",
    "--predict",
    "tokens_per_sec >= -50%",
    "--type",
    "pareto",
    "--diagnostic",
    "requests are lost",
)


def make_track(folder: Path) -> Path:
    """Strategy and workload in `folder`, the track in `tracks/tiny` of it."""
    (folder / STRATEGY).write_text(TINY)
    track = folder / "tracks" / "tiny"
    track.mkdir(parents=True)
    (track / "w.yaml").write_text(yaml.safe_dump(yaml.safe_load(TINY)["workload"]))
    (track / "problem.yaml").write_text(PROBLEM)
    return track
