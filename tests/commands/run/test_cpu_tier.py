"""What a run with a CPU tier says of its hits."""

from __future__ import annotations

from pathlib import Path

import pytest

from blis_jax import run

DOCUMENTS = """\
version: "2"
seed: 9
aggregate_rate: 8.0
num_requests: 40
clients:
"""
CLIENT = """\
  - {{id: {0}, rate_fraction: 0.33, prefix_group: {0}, prefix_length: 640, arrival: {{process: poisson}},
     input_distribution: {{type: constant, params: {{value: 16}}}},
     output_distribution: {{type: constant, params: {{value: 4}}}}}}
"""


@pytest.mark.parametrize(("cpu_blocks", "is_said"), [(0, False), (400, True)])
def test_hits_that_spare_no_prompt_are_told(
    cpu_blocks: int, is_said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three documents of 40 blocks in turn on 90 blocks: what comes back from the CPU comes too late for its step."""
    workload = tmp_path / "documents.yaml"
    workload.write_text(DOCUMENTS + "".join(map(CLIENT.format, "abc")))
    words = ["--profile", "blis-2026-08", "--model", "meta-llama/llama-3.1-8b-instruct"]
    memory = ["--total-kv-blocks", "90", "--kv-cpu-blocks", str(cpu_blocks)]
    assert run.main([*words, *memory, "--workload-spec", str(workload)]) == 0
    said = capsys.readouterr().err
    assert (
        "counts blocks that came back from the CPU for prompts that are computed" in said
    ) == is_said
