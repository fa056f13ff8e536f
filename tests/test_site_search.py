"""The site's own search: what people type, and the page that must be among the first three."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.recorded.reference_data import REPO_ROOT

pytest.importorskip("material", reason="the extra `docs` is not installed")
NODE = shutil.which("node")
WANTED = {
    "P/D": "how-to/first-questions.html",
    "disaggregation": "how-to/first-questions.html",
    "how many GPUs": "how-to/capacity.html",
    "how many instances": "how-to/capacity.html",
    "vllm bench serve": "how-to/calibration.html",
    "install": "tutorials/first-steps.html",
    "TTFT": "concepts/cluster.html",
    "goodput": "concepts/cluster.html",
    "prefix caching": "concepts/kv-memory.html",
    "xarray": "reference/python.html",
    "notebook": "reference/python.html",
    "pandas": "reference/python.html",
    "max_num_batched_tokens": "reference/settings.html",
    "GuideLLM": "how-to/calibration.html",
    "llm-d": "how-to/promote.html",
    "session_id": "how-to/trace-formats.html",
    "Mooncake": "how-to/trace-formats.html",
    "own policy": "how-to/policies.html",
    "scheduler": "how-to/policies.html",
    "admission": "how-to/policies.html",
    "autoscaler": "how-to/elastic.html",
    "which router": "how-to/first-questions.html",
    "batch size": "how-to/first-questions.html",
    "confidence interval": "how-to/compare-properly.html",
    "surrogate": "how-to/surrogates.html",
    "sensitivity": "how-to/sensitivity.html",
    "gradient": "how-to/derivatives.html",
    "workload file": "how-to/workloads.html",
    "saturation": "how-to/curve.html",
    "SLO": "concepts/cluster.html",
    "KV cache": "concepts/kv-memory.html",
    "Bayesian optimization": "how-to/search.html",
    "Kubernetes": "how-to/promote.html",
    "ShareGPT": "how-to/workloads.html",
    "autoscaling": "how-to/elastic.html",
    "burstiness": "how-to/workloads.html",
    "cheapest": "how-to/capacity.html",
    "cost per token": "how-to/curve.html",
    "disaggregated": "how-to/first-questions.html",
    "exit code": "reference/commands.html",
    "export csv": "reference/python.html",
    "how accurate": "results/real-servers.html",
    "load balancing": "how-to/first-questions.html",
    "multi-turn": "how-to/trace-formats.html",
    "node failure": "how-to/outages.html",
    "percentile": "reference/metrics.html",
    "preemption": "concepts/kv-memory.html",
    "priority": "how-to/policies.html",
    "queue depth": "concepts/cluster.html",
    "rate limit": "how-to/flow-control.html",
    "slow": "results/speed.html",
    "speculative decoding": "how-to/drafted-tokens.html",
    "stale metrics": "concepts/signals.html",
    "token budget": "concepts/cluster.html",
}


@pytest.mark.slow
@pytest.mark.skipif(NODE is None, reason="node is not installed")
def test_a_query_finds_its_page_among_the_first_three(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path)]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(build, cwd=REPO_ROOT, env=quiet, check=True)
    ask = [str(NODE), str(REPO_ROOT / "tests" / "support" / "site_search.js"), str(tmp_path)]
    done = subprocess.run([*ask, *WANTED], capture_output=True, text=True, check=True)
    found = [json.loads(line)[:3] for line in done.stdout.splitlines()]
    pairs = zip(WANTED.items(), found, strict=True)
    assert {query: pages for (query, page), pages in pairs if page not in pages} == {}
