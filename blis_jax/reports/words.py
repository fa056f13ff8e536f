"""Describe metrics, numbers and the simulated cluster in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np

from blis_jax.cluster.config import FIELDS, ClusterConfig
from blis_jax.cluster.instance_groups import InstanceGroup
from blis_jax.cluster.revisions import aligns_chunks
from blis_jax.cluster.router import short_name
from blis_jax.core.kinds import NONE
from blis_jax.metrics.metric import split_name
from blis_jax.metrics.scalars import title_of
from blis_jax.statistics.paired import can_tell_pooled

# the first that is there and can be judged
HEADLINE_METRICS = (
    "pooled_ttft_p99_ms",
    "ttft_p99_ms",
)
POOLED = "pooled_"
OF_LIMITS = ("goodput_rps", "attainment", "slo_miss_rate", "class_fairness")  # count by targets
NOTHING = "–"
LATENCIES = {
    "ttft": ("time to first token", "TTFT"),
    "e2e": ("end-to-end time", "E2E"),
    "tpot": ("time per output token", "TPOT"),
    "itl": ("time between output tokens", "ITL"),
}
_SPELT = {name: short for name, (_, short) in LATENCIES.items()} | {"slo": "SLO", "kv": "KV"}


def table_title(metric: str) -> str:
    """Return a metric's name in a table, with its unit: `TTFT P99 by run, ms`."""
    if title := title_of(metric):
        return title
    unit = ", ms" if metric.endswith("_ms") else ""
    of_run = metric.removeprefix(POOLED)
    words = [_SPELT.get(word, word) for word in of_run.removesuffix("_ms").split("_")]
    if words[-1][1:].isdecimal():
        words = [word.upper() if word[1:].isdecimal() else word for word in words]
        words.append("by run" if of_run == metric else "pooled")
    return " ".join(words) + unit


def headline_metric(metrics: Sequence[str], num_runs: int, family: int, error: float) -> str:
    """Return the metric for the verdict: a pooled metric only if the number of runs suffices for a verdict on it."""
    can_tell = can_tell_pooled(num_runs, family, 1 - error)
    known = [name for name in HEADLINE_METRICS if name in metrics]
    judged = [name for name in known if can_tell or not name.startswith(POOLED)]
    return next(iter([*judged, *known, *metrics, *HEADLINE_METRICS]))


def metric_name(metric: str) -> str:
    """Return a metric's name without its unit: `TTFT P99 by run`."""
    return table_title(metric).split(",")[0]


def unit_text(unit: str, form: str = " {}") -> str:
    """Return a unit as text after a number, or in another form such as " ({})"; empty for a pure number."""
    return "" if unit in ("", "1") else form.format(unit)


def metric_words(name: str) -> str:
    """Return a metric, with its `[class]` if any, in words: `TTFT P99 of critical requests`."""
    metric, slo_class = split_name(name)
    words = metric_name(metric).removesuffix(" by run").replace("/s", " per second")
    if words.endswith(" mean"):
        words = f"mean {words.removesuffix(' mean')}"
    return words + (f" of {slo_class} requests" if slo_class else "")


def number(value: float | None, signed: bool = False, like: float | None = None) -> str:
    """Return a number with three or four significant digits, or with as many decimals as `like` would have."""
    if value is None or not math.isfinite(value):
        return NOTHING
    size = abs(value if like is None or not math.isfinite(like) else like)
    decimals = 0 if size >= 1000 else 1 if size >= 10 else 2 if size >= 0.1 or size == 0 else 3
    text = f"{value:{'+' * signed}.{decimals}f}"
    return text.replace("-", "−")


def target_line(targets: Mapping[str, Mapping[str, float]], classes: Sequence[str] = ()) -> str:
    """Return a sentence on what goodput counts: the targets of `classes`, or of all classes."""
    texts = []
    for name in classes or targets:
        limits = [
            f"{key.removesuffix('_ms').upper()} ≤ {ms:g} ms"
            for key, ms in targets.get(name, {}).items()
        ]
        none = f"no target, so all that complete (--targets {name}.ttft_ms=MS)"
        texts.append(f"{name} {' and '.join(limits) or none}")
    return f"Goodput counts completed requests within their class's targets: {', '.join(texts)}."


def limits_lines(
    metrics: Iterable[str], targets: Mapping[str, Mapping[str, float]], classes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return `target_line` if one of the metrics depends on the targets; else an empty tuple."""
    counts = any(split_name(name)[0] in OF_LIMITS for name in metrics)
    return (target_line(targets, classes),) if counts else ()


def joined(words: Sequence[str], last: str = "and") -> str:
    """Join words as `a, b and c`."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def survivors_line(completed: int, arrived: int, others: Mapping[str, int] | None = None) -> str:
    """Return a sentence on how many requests have completed; `others` counts the rest by status."""
    ended = ", ".join(f"{count:,} {name}" for name, count in (others or {}).items())
    ended = f" ({ended})" if ended else ""
    if not completed:
        return f"none of the {arrived:,} requests that arrived has completed{ended}: there is no E2E and no TPOT"
    of_all = f"{completed:,} of the {arrived:,} requests that arrived have completed{ended}"
    return f"{of_all}; latencies are of those that came so far"


# of an answer's other gaps, which February's second last gap may add without a word
LARGEST_GAP = 0.05


def last_gaps(config: ClusterConfig, output_len: np.ndarray) -> str | None:
    """Return a sentence if BLIS of February, which counts the last gap of an output twice, changes TPOT by much."""
    gaps = output_len[output_len > 1] - 1.0
    share = float(np.mean(1.0 / gaps)) if len(gaps) else 0.0
    if config.corrected or config.is_august or share < LARGEST_GAP:
        return None
    return (
        f"BLIS of February counts the last gap between an answer's tokens twice: for answers as short as these TPOT is "
        f"{100 * share:.0f} % too long, and E2E one gap; corrected=true (of a run --corrected) is without this"
    )


# --- the first line of every output: which cluster was simulated, and as what ---------------------


MOST_NAMED = 4  # arms that have a line of what is theirs alone
LONGEST = 160  # characters of the first line
MOST_SCORERS = 3  # that a shortened line names of a router
SHORTENED = ("model", "profile", "router", "instances")  # in turn, until the line is short enough


def cluster_line(configs: Mapping[str, ClusterConfig], varied: Collection[str] = ()) -> str:
    """Return lines with model, GPUs, instances, token budget, chunks, router and profile of the arms, given by name.

    The first line has what all arms share, with names shortened to fit. The next lines have rarely used settings, and
    the settings in which single arms differ. `varied` are settings whose values the command itself varies, so that the
    arms' own values have no meaning.
    """
    said = {part: _told(part, configs, varied) for part in _PARTS}
    by_arm = [part for part in said if said[part] is None]
    common = {part: texts for part, texts in said.items() if texts is not None}
    own, num_more = _own(configs, {*varied, *(name for part in _PARTS for name in part.settings)})
    of_arms = [part.name for part in by_arm] + ["settings"] * bool(own)
    of_arms += [f"{num_more} {'more ' * bool(of_arms)}settings"] * bool(num_more)
    names = [f"by arm: {', '.join(of_arms)}"] if of_arms else []
    told = {part.name: texts for part, texts in common.items() if not part.is_seldom}
    for count in range(len(SHORTENED) + 1):
        words = [texts[name in SHORTENED[:count]] for name, texts in told.items()]
        line = f"{'; '.join([*filter(None, words), *names])}."
        if len(line) <= LONGEST:
            break
    also = [texts[0] for part, texts in common.items() if texts[0] and part.is_seldom]
    rare = "; ".join(also)
    below = [f"{rare[0].upper()}{rare[1:]}."] if also else []
    if len(configs) <= MOST_NAMED and (by_arm or own):
        below += [
            f"{name}: {'; '.join([*(part.of_arm(config) for part in by_arm), *own.get(name, ())]) or 'the defaults'}."
            for name, config in configs.items()
        ]
    return "\n".join([line, *below])


MOST_OWN = 6  # settings without words that are told of each arm
_OF_MACHINES = ("tp", "dp", "hardware", "num_instances", "instances", "node_pools")  # told together
_FOLLOW = ("alpha_coeffs", "beta_coeffs", "total_kv_blocks")  # from model and GPUs
_NUMBERS = "policy_numbers"


def _own(
    configs: Mapping[str, ClusterConfig], told: Collection[str]
) -> tuple[dict[str, list[str]], int]:
    """Return, by arm, non-default settings in which arms differ and that `told` lacks; if many, only their number."""
    values = [
        {name: getattr(config, name) for name in FIELDS} | dict(config.policy_numbers)
        for config in configs.values()
    ]
    names = dict.fromkeys(name for each in values for name in each if name != _NUMBERS)
    own = [name for name in names if len({repr(each.get(name)) for each in values}) > 1]
    follow = () if {"model", *_OF_MACHINES}.isdisjoint(own) else _FOLLOW
    own = [name for name in own if name not in {*told, *_OF_MACHINES, *follow}]
    if len(own) > MOST_OWN:
        return {}, len(own)
    defaults = {name: repr(FIELDS[name].default) if name in FIELDS else "None" for name in own}
    texts = {
        arm: [
            f"{name}={short_name(str(each.get(name)))}"
            for name in own
            if repr(each.get(name)) != defaults[name]
        ]
        for arm, each in zip(configs, values, strict=True)
    }
    return (texts if own else {}), 0


class _Part(NamedTuple):
    name: str
    settings: tuple[str, ...]  # that it tells of
    text: Callable[[ClusterConfig], str]  # empty if there is nothing to tell
    without: str = ""  # said of arms without a text where others have one
    is_seldom: bool = False  # few clusters have it
    short: Callable[[ClusterConfig], str] | None = None  # where the text is too long

    def of_arm(self, config: ClusterConfig) -> str:
        """Return the part's text for one arm, to be listed beside others."""
        return self.text(config) or self.without or f"no {self.name}"


def _told(
    part: _Part, configs: Mapping[str, ClusterConfig], varied: Collection[str]
) -> tuple[str, str] | None:
    """Return the text of a part that all arms share, full and shortened; None if arms differ in it."""
    if not set(part.settings).isdisjoint(varied):
        return f"{part.name} varied", f"{part.name} varied"
    text, short = part.text, part.short or part.text
    if part.name == "instances" and "num_instances" in varied:
        told = _each(configs.values())
        return told, told
    first = next(iter(configs.values()))
    is_common = len({text(config) for config in configs.values()}) == 1
    return (text(first), short(first)) if is_common else None


def _instances(config: ClusterConfig) -> str:
    groups = config.instances or (InstanceGroup(config.num_instances),)
    kinds = [(group.role, _gpus(config, group), group.count) for group in groups]
    merged = [
        (kind, sum(count for *_, count in same))
        for kind, same in groupby(kinds, lambda kind: kind[:2])
    ]
    return machines_text([(count, role, *gpus) for (role, gpus), count in merged])


def machines_text(parts: Sequence[tuple[int, str, int, str]]) -> str:
    """Return instances and GPUs: `3 instances × 2 A100-80 = 6 GPUs`.

    Args:
        parts: for each kind of instance its count, its role, its number of GPUs, and the GPU's name or "".
    """
    texts = [
        f"{count} {f'{role} ' * (role != 'both')}instance{'s' * (count != 1)} × {number} {gpu or 'GPU'}"
        for count, role, number, gpu in parts
    ]
    total = sum(count * number for count, _, number, _ in parts)
    return f"{' + '.join(texts)} = {total} GPU{'s' * (total != 1)}"


def _few_words(config: ClusterConfig) -> str:
    """Return the instances without the word `instances`: 8 × 2 H100 = 16 GPUs."""
    return re.sub(r" instances?", "", _instances(config))


def _each(configs: Collection[ClusterConfig]) -> str:
    """Return the GPUs of an instance for clusters whose number of instances is varied: `instances × 1 or 2 H100`."""
    sizes: dict[str, dict[str, None]] = {}
    for config in configs:
        number, gpu = _gpus(config, InstanceGroup())
        sizes.setdefault(gpu or "GPU", {})[str(number)] = None
    kinds = " or ".join(f"{' or '.join(numbers)} {gpu}" for gpu, numbers in sizes.items())
    return f"instances × {kinds}, their number varied"


def _gpus(config: ClusterConfig, group: InstanceGroup) -> tuple[int, str]:
    """Return number and name of the GPUs of an instance of the group."""
    tp, dp = group.tp or config.tp, group.dp or config.dp
    return (tp or 1) * dp, group.hardware or config.hardware


def _model(config: ClusterConfig) -> str:
    return config.model or "a model without a name"


def _budget(config: ClusterConfig) -> str:
    tokens, requests = config.max_num_scheduled_tokens, config.max_num_running_reqs
    return f"budget {tokens:,} tokens, {requests:,} requests"


def _chunks(config: ClusterConfig) -> str:
    if config.slo_prefill:
        return "chunks by class" + ", cut at blocks" * aligns_chunks(config)
    most = config.long_prefill_token_threshold
    chunks = f"chunks of {most:,}" if most else "chunks by budget"
    return f"{chunks}, cut at blocks" if aligns_chunks(config) else chunks


def _cache(config: ClusterConfig) -> str:
    return "" if config.enable_prefix_caching else "prefix caching off"


def _drafts(config: ClusterConfig) -> str:
    drafts = config.speculative_config
    return drafts.sentence() if drafts.num_speculative_tokens else ""


def _short_drafts(config: ClusterConfig) -> str:
    drafts = config.speculative_config
    num, tokens = drafts.num_speculative_tokens, drafts.mean_tokens()
    return f"{num} drafts ({drafts.method}, {tokens:.3g} tokens a step)" if num else ""


def _tier(config: ClusterConfig) -> str:
    blocks = config.kv_cpu_blocks
    return f"CPU tier of {blocks:,} KV blocks" if blocks else ""


def _router(config: ClusterConfig) -> str:
    scorers = " + ".join(f"{short_name(name)} {weight:g}" for name, weight in config.scorers())
    name = short_name(config.routing_policy)
    return f"router {name}{f' by {scorers}' * bool(scorers)}{_handed(config)}"


def _short_router(config: ClusterConfig) -> str:
    """Return the router, with its scorers' names cut to the first word."""
    scorers = ", ".join(
        f"{short_name(name).split('-')[0]} {weight:g}" for name, weight in config.scorers()
    )
    many = len(config.scorers())
    named = f"of {many} scorers" if many > MOST_SCORERS else scorers
    return f"router {named or short_name(config.routing_policy)}{_handed(config)}"


def _handed(config: ClusterConfig) -> str:
    name = config.hand_over_policy
    return "" if name == NONE else f", hand-over {short_name(name)}"


def _profile(config: ClusterConfig) -> str:
    if config.corrected:
        return "without BLIS's defects"
    month = "August" if config.is_august else "February"
    return f"as BLIS of {month} 2026, defects included"


def _short_profile(config: ClusterConfig) -> str:
    profile = "blis-2026-08" if config.is_august else "blis-2026-02"
    return "without BLIS's defects" if config.corrected else f"{profile} with defects"


def _free_exchange(config: ClusterConfig) -> str:
    """Return a remark that the roofline ignores exchange between GPUs; empty if no instance has several."""
    groups = config.instances or (InstanceGroup(config.num_instances),)
    if config.latency_model != "roofline" or all(_gpus(config, group)[0] < 2 for group in groups):
        return ""
    return (
        "roofline: the GPUs of an instance exchange data in no time, so tp looks better than it is"
    )


_PARTS = (
    _Part("model", ("model",), _model, short=lambda config: _model(config).rpartition("/")[2]),
    _Part("instances", (), _instances, short=_few_words),
    _Part("budget", ("max_num_scheduled_tokens", "max_num_running_reqs"), _budget),
    _Part("chunks", ("long_prefill_token_threshold", "slo_prefill", "mamba_cache_mode"), _chunks),
    _Part(
        "router",
        ("routing_policy", "routing_scorers", "hand_over_policy"),
        _router,
        short=_short_router,
    ),
    _Part(
        "drafts", ("speculative_config",), _drafts, "no drafts", is_seldom=True, short=_short_drafts
    ),
    _Part("profile", ("corrected", "revision", "variant"), _profile, short=_short_profile),
    _Part(
        "prefix caching", ("enable_prefix_caching",), _cache, "prefix caching on", is_seldom=True
    ),
    _Part("CPU tier", ("kv_cpu_blocks",), _tier, is_seldom=True),
    _Part(
        "cost of tp left out",
        ("latency_model",),
        _free_exchange,
        "no cost of tp is left out",
        is_seldom=True,
    ),
)
