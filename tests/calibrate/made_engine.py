"""Made-up engines whose law of a step is known."""

import numpy as np
import pandas as pd

from blis_jax.latency.step_law import TERMS, StepSums, terms_of

TRUE = {
    "µs per step": 3000.0,
    "µs per row of a captured decode graph, 0 to 1": 2000.0,
    "µs per row of a captured decode graph, 8 to 16": 60.0,
    "µs per token of context": 0.03,
    "µs per step with a prompt": 2500.0,
    "µs per prompt": 300.0,
    "µs per product of new tokens and context of a prompt": 2e-4,
    "µs per token of a step with a prompt, 128 to 256": 20.0,
    "µs per step outside captured graphs": 15_000.0,
    "µs per token outside captured graphs beyond 512, 512 to 1536": 12.0,
}
BY_GPUS = ("µs per token of context", "µs per row of a captured decode graph, 0 to 1")


def true_ms(table: pd.DataFrame, tp: int = 1) -> np.ndarray:
    """What the engine takes; what its GPUs read is shared between them."""
    beta = [TRUE.get(name, 0.0) / (tp if name in BY_GPUS else 1) for name in TERMS]
    columns = (
        "num_prefill_requests", "sum_prefill_tokens", "sum_prefill_kv_tokens", "num_decode_requests",
        "sum_decode_kv_tokens", "var_decode_kv_tokens",
    )  # fmt: skip
    values = [table[name].to_numpy(float) for name in columns]
    values[-1] = np.sqrt(values[-1])
    return np.column_stack(terms_of(StepSums(*values), np)) @ beta / 1e3


def made_steps(num: int = 600, tp: int = 1, seed: int = 0, noise: float = 0.005) -> pd.DataFrame:
    """Steps of one deployment, a third of them with prompts; the first of each kind compiles."""
    random = np.random.default_rng(seed)
    prompts = np.where(random.random(num) < 0.35, random.integers(1, 5, num), 0)
    tokens = np.where(prompts > 0, random.choice([64, 128, 300, 900, 2000, 4000, 8000], num), 0)
    decodes = np.where((prompts > 0) & (random.random(num) < 0.4), 0, random.integers(1, 33, num))
    mean = random.uniform(500, 9000, num)
    table = pd.DataFrame(
        {
            "run": f"made-tp{tp}", "model": "made/up", "tp": tp, "dp": 1, "ep": 1, "step": np.arange(num),
            "sum_prefill_tokens": tokens, "num_prefill_requests": prompts,
            "sum_prefill_kv_tokens": np.where(prompts > 0, random.choice([0, 3000], num), 0),
            "num_decode_requests": decodes, "sum_decode_kv_tokens": np.round(decodes * mean).astype(int),
            "var_decode_kv_tokens": np.where(decodes > 1, (0.3 * mean) ** 2, 0.0),
        }
    )  # fmt: skip
    ms = true_ms(table, tp) * np.exp(random.normal(0, noise, num))
    ms[0] += 2000.0
    return table.assign(latency_ms=ms)
