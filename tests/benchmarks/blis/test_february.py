"""Random command lines of February: the same each time, known to `run`, with every option of BLIS's `run`."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from benchmarks.blis import february, lines
from blis_jax.commands.august_files import options_of
from blis_jax.commands.run.flags import make_parser
from blis_jax.workload.source import FIRST_REVISION
from blis_jax.workload.spec import load_spec

# `inference-sim run --help` at e01862e3, without --help
RUN = """
admission-latency admission-policy alpha-coeffs beta-coeffs block-size-in-tokens counterfactual-k defaults-filepath
fitness-weights hardware hardware-config horizon kv-cpu-blocks kv-offload-threshold kv-transfer-bandwidth
kv-transfer-base-latency load-adaptive-high load-adaptive-low log long-prefill-token-threshold max-model-len
max-num-running-reqs max-num-scheduled-tokens model model-config-folder num-instances num-requests output-tokens
output-tokens-max output-tokens-min output-tokens-stdev policy-config prefix-tokens priority-policy prompt-tokens
prompt-tokens-max prompt-tokens-min prompt-tokens-stdev rate results-path roofline routing-latency routing-policy
routing-scorers scheduler seed slo-age-weight slo-base-critical slo-base-sheddable slo-base-standard
slo-gated-threshold slo-preemption slo-prefill slo-prefill-critical slo-prefill-sheddable slo-priority-bridge
slo-scorer-bias-critical slo-scorer-bias-sheddable slo-threshold-sheddable slo-threshold-standard
snapshot-refresh-interval summarize-trace token-bucket-capacity token-bucket-refill-rate total-kv-blocks tp
trace-level vllm-version workload workload-spec workload-traces-filepath
"""
# of the machine, and of one fit for each model
NOT_DRAWN = {"defaults-filepath", "hardware-config", "log", "vllm-version"}


@pytest.mark.filterwarnings("ignore::blis_jax.errors.ConfigWarning")  # of files of version 1
def test_a_line_is_the_same_each_time_and_known(tmp_path: Path) -> None:
    for number in range(0, 60 * lines.LINES, lines.LINES + 1):
        drawn = february.line(number, tmp_path)
        texts = {path: path.read_text() for path in tmp_path.rglob("*.*") if path.is_file()}
        assert drawn == february.line(number, tmp_path)
        assert texts == {path: path.read_text() for path in texts}
        make_parser().given(["--profile", "blis-2026-02", *drawn.words])
        for name, value in zip(drawn.words, drawn.words[1:], strict=False):
            if name == "--policy-config":
                options_of(value, is_august=False)
            if name == "--workload-spec" and yaml.safe_load(Path(value).read_text()).get("clients"):
                load_spec(Path(value), FIRST_REVISION)


def test_every_option_of_blis_is_drawn(tmp_path: Path) -> None:
    drawn = {
        word[2:]
        for group in range(300)
        for word in february.line(lines.LINES * group, tmp_path).words
        if word.startswith("--")
    }
    assert {*RUN.split()} - drawn == NOT_DRAWN
    assert drawn <= {*RUN.split()}
