"""vLLM's prompts, cut at whole KV blocks as for linear attention or not, against a plain replay."""

import dataclasses
from typing import Any, Literal, NamedTuple

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from blis_jax.cluster import config
from blis_jax.commands.cluster_settings import cluster_config
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError
from blis_jax.metrics.distributions import itl_sample
from blis_jax.records import invariants
from blis_jax.reports.words import cluster_line
from blis_jax.runs.many_runs import simulate
from blis_jax.runs.options import Options
from tests.engine.test_properties import NODES, OPTIONS, PHASES
from tests.support.oracles.aligned_chunks import Replay, Served
from tests.support.scenes import Prompt, flags, table_of, workload_of

BLOCK, MANY = 4, 1000


class Scene(NamedTuple):
    """One run to make."""

    rows: list[Prompt]
    numbers: dict[str, Any]


def cluster_of(**numbers: Any) -> config.ClusterConfig:
    given = flags(block_size_in_tokens=BLOCK, beta_coeffs=[5000.0, 1000.0, 0.0], **numbers)
    return config.from_flags(given).replace(
        mamba_cache_mode="align", corrected=True, preemption_mode="recompute"
    )


def check(scene: Scene, mode: str = "align", options: Options = OPTIONS) -> Replay:
    cluster = cluster_of(**scene.numbers).replace(mamba_cache_mode=mode)
    record = simulate(cluster, table_of(workload_of(scene.rows, BLOCK), **NODES), options)
    assert record.outcome == Outcome.COMPLETED
    replay = Replay(
        block=BLOCK,
        budget=cluster.max_num_scheduled_tokens,
        threshold=cluster.long_prefill_token_threshold,
        most_running=cluster.max_num_running_reqs,
        num_blocks=cluster.total_kv_blocks,
        cuts=mode == "align",
    )
    served = [
        Served(p.arrival_us, p.input_len, p.output_len, p.group, max(p.prefix_len, 0))
        for p in scene.rows
    ]
    expected, requests = replay.run(served), record.requests
    assert requests.preemptions.tolist() == [each.preemptions for each in expected]
    firsts = [each.token_ends[0] - each.arrival for each in expected]
    assert requests.ttft_us.tolist() == firsts
    assert requests.e2e_us.tolist() == [each.token_ends[-1] - each.arrival for each in expected]
    assert requests.num_itl.tolist() == [len(each.token_ends) - 1 for each in expected]
    assert requests.cached_tokens_first_sched.tolist() == [BLOCK * each.hits for each in expected]
    latencies = sorted(latency for each in expected for latency in each.latencies)
    found = itl_sample(record)
    values = np.repeat(found.values, np.diff(found.ends, prepend=0))
    assert values.tolist() == latencies
    assert not any(invariants.violations(record).values())
    return replay


@st.composite
def roomy(draw: Any) -> Scene:
    """Long prompts, some of which begin alike, and budgets that leave parts of blocks."""
    size = draw(st.integers(2, 10))
    gaps = draw(st.lists(st.sampled_from([0, 3, 9, 40]), min_size=size, max_size=size))
    times = np.cumsum(gaps) * 1000 + np.arange(size)
    rows = []
    for at in times.tolist():
        prompt, group = draw(st.integers(0, 40)), draw(st.sampled_from([-1, -1, 0, 1]))
        shared = draw(st.integers(0, 16)) if group >= 0 else 0
        length = max(prompt + shared, 1)
        rows.append(Prompt(at, length, draw(st.integers(1, 12)), 0, group, shared))
    return Scene(
        rows,
        {
            "total_kv_blocks": MANY,
            "max_num_scheduled_tokens": draw(st.sampled_from([4, 7, 8, 13, 64])),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 5, 9])),
            "max_num_running_reqs": draw(st.sampled_from([2, 4])),
        },
    )


@st.composite
def pressed(draw: Any) -> Scene:
    """Short prompts with long outputs, which become prompt where memory is tight."""
    size = draw(st.integers(2, 10))
    gaps = draw(st.lists(st.sampled_from([0, 3, 9, 30]), min_size=size, max_size=size))
    times = np.cumsum(gaps) * 1000 + np.arange(size)
    lengths = st.tuples(st.integers(1, BLOCK - 1), st.integers(1, 40))
    return Scene(
        [Prompt(at, *draw(lengths)) for at in times.tolist()],
        {
            "total_kv_blocks": draw(st.sampled_from([12, 14, 20])),
            "max_num_scheduled_tokens": draw(st.sampled_from([7, 13, 2048])),
            "long_prefill_token_threshold": draw(st.sampled_from([0, 5, 9])),
            "max_num_running_reqs": draw(st.sampled_from([2, 5])),
        },
    )


# a prompt of 3 blocks and 2 tokens in budgets of 2 blocks, beside one that decodes and takes the rest of a block
CUT = Scene(
    [Prompt(0, 2, 12), Prompt(1, 14, 3), Prompt(2, 3, 5), Prompt(20_003, 9, 2)],
    {"total_kv_blocks": MANY, "max_num_scheduled_tokens": 8, "max_num_running_reqs": 4},
)
# the second prompt has 12 of 13 tokens, and the third joins with the one that is left; then it takes all 13
STARVED = Scene(
    [Prompt(0, 32, 5), Prompt(3000, 28, 16), Prompt(6000, 1, 20)],
    {"total_kv_blocks": MANY, "max_num_scheduled_tokens": 13, "max_num_running_reqs": 4},
)


def test_prompts_end_at_blocks_and_wait_for_whole_ones() -> None:
    """By hand: 14 tokens are computed as 4, 8 and 2, for a member in decode leaves 7 of 8 tokens."""
    replay = Replay(block=BLOCK, budget=8, threshold=0, most_running=4, num_blocks=MANY)
    first, second = replay.run([Served(0, 2, 12), Served(1, 14, 3)])
    assert (first.chunks, second.chunks) == ([2], [4, 4, 4, 2])
    assert check(CUT).held_up > 0


def test_a_member_gets_nothing_where_a_prompt_ahead_takes_all() -> None:
    assert check(STARVED).passed_over > 0


# the second prompt is the first again, the third is a block longer, and the fourth a token shorter
AGAIN = Scene(
    [Prompt(at * 90_000, tokens, 3, 0, 0, tokens) for at, tokens in enumerate((16, 16, 20, 15))],
    {"total_kv_blocks": MANY, "max_num_scheduled_tokens": 64, "max_num_running_reqs": 4},
)


@pytest.mark.parametrize("kv_model", ["block-level", "no-eviction"])
@pytest.mark.parametrize("mode", ["align", "none"])
def test_the_last_token_of_a_prompt_is_computed_though_it_is_cached(
    mode: str, kv_model: Literal["block-level", "no-eviction"]
) -> None:
    """By hand: 16 tokens are four blocks, of which three are taken from the cache, and four tokens are computed."""
    options = dataclasses.replace(OPTIONS, kv_model=kv_model)
    check(AGAIN, mode, options)
    blis = config.from_flags(flags(block_size_in_tokens=BLOCK, beta_coeffs=[5000.0, 1000.0, 0.0]))
    table = table_of(workload_of(AGAIN.rows, BLOCK), **NODES)
    found = simulate(blis, table, options).requests
    assert found.cached_tokens_first_sched.tolist() == [0, 16, 16, 12]
    assert found.ttft_us.tolist() == [21_000, 5_000, 9_000, 8_000]
    vllm = cluster_of(**AGAIN.numbers).replace(mamba_cache_mode=mode)
    found = simulate(vllm, table, options).requests
    assert found.cached_tokens_first_sched.tolist() == [0, 12, 16, 12]
    assert found.ttft_us.tolist() == [21_000, 9_000, 9_000, 8_000]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@hypothesis.settings(max_examples=100, phases=PHASES)
@hypothesis.given(roomy(), st.sampled_from(["block-level", "no-eviction"]))
def test_uncut_prompts_equal_a_plain_replay(
    scene: Scene, kv_model: Literal["block-level", "no-eviction"]
) -> None:
    """With a budget that all have room in."""
    numbers = scene.numbers | {"max_num_scheduled_tokens": 2048}
    check(Scene(scene.rows, numbers), "none", dataclasses.replace(OPTIONS, kv_model=kv_model))


@pytest.mark.slow
@pytest.mark.timeout(1200)
@hypothesis.settings(max_examples=300, phases=PHASES)
@hypothesis.given(roomy())
def test_equals_a_plain_replay(scene: Scene) -> None:
    check(scene)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@hypothesis.settings(max_examples=200, phases=PHASES)
@hypothesis.given(pressed())
def test_equals_a_plain_replay_where_memory_is_tight(scene: Scene) -> None:
    check(scene)


def test_a_drafter_that_reads_states_gives_up_the_last_block() -> None:
    """14 tokens have three whole blocks; the state is kept behind the second one, and 6 tokens follow."""
    drafts = {"num_speculative_tokens": 1, "acceptance_rate": 0.0, "acceptance": "expected"}
    prefills = {}
    for method in ("eagle", "ngram"):
        cluster = cluster_of(max_num_scheduled_tokens=64, max_num_running_reqs=4).replace(
            speculative_config={"method": method, "draft_step_us": 0.0, **drafts}
        )
        record = simulate(
            cluster, table_of(workload_of([Prompt(0, 14, 2)], BLOCK), **NODES), OPTIONS
        )
        prefills[method] = ((record.steps.duration_us[:2] - 5000) // 1000).tolist()
    assert prefills == {"eagle": [8, 6], "ngram": [12, 2]}


def test_without_it_nothing_is_cut_at_a_block() -> None:
    cluster = cluster_of(max_num_scheduled_tokens=9).replace(mamba_cache_mode="none")
    record = simulate(cluster, table_of(workload_of([Prompt(0, 14)], BLOCK), **NODES), OPTIONS)
    assert record.steps.duration_us.tolist() == [14_000, 10_000]


def test_vllm_says_it_so_and_the_run_is_vllms() -> None:
    made = config.ClusterConfig(mamba_cache_mode="align", block_size=528)
    assert made.corrected and made.preemption_mode == "recompute"
    assert "cut at blocks" in cluster_line({"one": made})


@pytest.mark.parametrize(("tp", "block"), [(1, 1056), (2, 1056), (4, 528)])
@pytest.mark.filterwarnings("ignore:step times stay")
def test_the_block_is_the_one_of_the_model(tp: int, block: int) -> None:
    """Those of measured servers: what was computed of their prompts before a step is a multiple of it."""
    made = config.ClusterConfig(mamba_cache_mode="align", model="qwen/qwen3.6-35b-a3b", tp=tp)
    assert made.block_size_in_tokens == block
    with pytest.raises(ConfigError, match=f"block_size 16 has no room .* vLLM takes {block}; give"):
        made.replace(block_size_in_tokens=16)
    options = {"model": made.model, "tp": tp, "hardware": "H100", "mamba_cache_mode": "align"}
    of_run = cluster_config(options | {"alpha_coeffs": (0.0,) * 3, "beta_coeffs": (1e4, 1.0, 1.0)})
    assert of_run.block_size_in_tokens == block
    assert of_run.corrected and of_run.preemption_mode == "recompute"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"block_size": None}, "no linear attention is known of meta-llama/llama-3.1-8b"),
        ({"block_size": None, "model": "qwen/qwen3-32b"}, "is known of qwen/qwen3-32b, and block_size"),
        ({"block_size": 4096}, "max_num_batched_tokens 2048 is below block_size 4096"),
        ({"cluster_policy": "saturation-autoscaler"}, "cluster_policy saturation-autoscaler has no rule"),
        ({"corrected": False}, "claims to be equal to BLIS"),
        ({"enable_prefix_caching": False}, "with enable_prefix_caching True alone"),
        ({"kv_cpu_blocks": 8}, "kv_cpu_blocks has no rule"),
        ({"long_prefill_token_threshold": 9}, "long_prefill_token_threshold 9 is below block_size 16"),
        ({"mamba_block_size": 16}, "kept at whole KV blocks, of block_size tokens"),
        ({"mamba_cache_mode": "all"}, "use none or align"),
        ({"preemption_mode": "restart"}, "with preemption_mode recompute alone"),
        ({"revision": "blis-2026-08"}, "is not part of blis-2026-08"),
        ({"slo_prefill": True, "slo_prefill_critical": 8}, "slo_prefill_critical 8 is below"),
    ],
)  # fmt: skip
def test_what_does_not_go_with_it_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        said = {"mamba_cache_mode": "align", "block_size": 16} | settings
        config.ClusterConfig(**{name: value for name, value in said.items() if value is not None})
