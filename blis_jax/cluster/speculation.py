"""Drafted tokens (speculative decoding): vLLM's `--speculative-config`, and measured numbers that vLLM does not take.

Source: vLLM's documentation of `SpeculativeConfig`. How many drafts are accepted and how long the drafter takes are
measured, so this configuration adds them.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.cluster.instance_groups import per_instance, refuse_beside
from blis_jax.cluster.settings import setting
from blis_jax.core.kinds import NONE
from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError, choices, shortened
from blis_jax.files.input_files import given_keys, mapping, read_text
from blis_jax.files.strict_yaml import chosen_at, number_at, read_mapping, value_at

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

MOST_DRAFTS, MOST_RANGES, MOST_US = 32, 16, 1e9
METHODS = ("mtp", "eagle", "eagle3", "ngram", "draft_model", "medusa", "suffix")
WITHOUT_DRAFTER = ("ngram", "suffix")  # methods that look their drafts up
# methods whose drafter goes on from the model's own states
READS_STATES = (
    "mtp",
    "eagle",
    "eagle3",
)
RATES = "acceptance_rate", "synthetic_acceptance_rates"
SCHEDULE = "num_speculative_tokens_per_batch_size"
_OURS = "acceptance_rate", "acceptance", "draft_step_us", "draft_token_us"
# keys of vLLM that change no time here
_UNUSED = (
    *("model", "draft_tensor_parallel_size", "max_model_len", "quantization", "revision"),
    *("prompt_lookup_max", "prompt_lookup_min", "rejection_sample_method", "parallel_drafting"),
)
_KEYS = ("method", "num_speculative_tokens", SCHEDULE, RATES[1], *_OURS, *_UNUSED)
_RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True)
class SpeculativeConfig:
    """The content of `--speculative-config`; without drafted tokens a step yields one token per request."""

    method: str = ""
    num_speculative_tokens: int = 0
    # by class of request, "" for all others: of each draft, the rate at which it is accepted if all before it are
    rates: tuple[tuple[str, tuple[float, ...]], ...] = ()
    per_batch_size: tuple[tuple[int, int], ...] = ()  # least batch and drafts, in ascending order
    acceptance: str = "drawn"
    draft_step_us: float = 0.0
    draft_token_us: float = 0.0

    @property
    def is_drawn(self) -> bool:
        """Return whether the number of accepted drafts is drawn at random."""
        return self.num_speculative_tokens > 0 and self.acceptance == "drawn"

    @property
    def schedule(self) -> tuple[tuple[int, int], ...]:
        """Return the smallest batch size and the number of drafts of each range, in rising order of batch size."""
        return ((0, self.num_speculative_tokens), *self.per_batch_size)

    def reach(self, slo_class: str) -> list[float]:
        """Return, per draft position, the probability that all drafts up to it are accepted, for a class's requests."""
        rates = dict(self.rates)
        return list(itertools.accumulate(rates.get(slo_class, rates.get("", ())), float.__mul__))

    def mean_tokens(self, slo_class: str = "") -> float:
        """Return the mean tokens that a request of the class gains in a step, ignoring its remaining length."""
        return 1.0 + sum(self.reach(slo_class))

    def plain(self) -> dict[str, Any]:
        """Return the content as the mapping that `config_of` reads."""
        said = {
            name: getattr(self, name) for name in ("method", "num_speculative_tokens", *_OURS[1:])
        }
        ends = [*(size - 1 for size, _ in self.per_batch_size[1:]), 2**31 - 3]
        ranges = [
            [low, end, num] for (low, num), end in zip(self.per_batch_size, ends, strict=False)
        ]
        rates = {name or "other": list(of) for name, of in self.rates}
        return said | {"acceptance_rate": rates} | ({SCHEDULE: ranges} if ranges else {})

    def sentence(self) -> str:
        """Return a phrase that describes the drafts."""
        drafts = f"{self.num_speculative_tokens} drafts a step ({self.method})"
        drafts += "".join(f", {num} from {size} requests on" for size, num in self.per_batch_size)
        means = " or ".join(
            f"{self.mean_tokens(name):.3g}" + (f" ({name})" if name else "")
            for name, _ in self.rates
        )
        how = "as expected" if self.acceptance == "expected" else "drawn"
        times = f"{self.draft_step_us:g} µs a draft"
        if self.draft_token_us:
            times += f" and {self.draft_token_us:g} µs a drafted token"
        return f"{drafts}, {means} tokens a step on average ({how}); drafter {times}"


@dataclass(frozen=True)
class SpeculativeSettings:
    """Drafted tokens (speculative decoding)."""

    speculative_config: SpeculativeConfig = setting(  # noqa: RUF009  # frozen
        SpeculativeConfig(), "tokens that are drafted for each step, and how many of them are accepted",
        words="vLLM's mapping, as JSON or the path of a file; see [Drafted tokens](../how-to/drafted-tokens.md)",
        option="vLLM's JSON, or a file with it: method, num_speculative_tokens, and acceptance_rate, which is "
        "measured", metavar="JSON", is_found=True,
    )  # fmt: skip


# --- reading it -----------------------------------------------------------------------------------


def given_config(value: object) -> SpeculativeConfig:
    """Return the speculative configuration that a setting's value describes: a mapping, its JSON, or a file's path.

    Raises:
        ConfigError: the file cannot be read, or a key or value is not allowed.
    """
    if isinstance(value, SpeculativeConfig):
        return value
    place = "speculative_config"
    if isinstance(value, str):
        text = value.strip()
        if not text.startswith("{"):
            text, place = read_text(Path(text), "a --speculative-config file"), text
        value = read_mapping(text, place)
    if value is None or value == dataclasses.asdict(SpeculativeConfig()):
        return SpeculativeConfig()
    return config_of(value, place)


def config_of(section: object, place: str) -> SpeculativeConfig:
    """Return the configuration in vLLM's mapping.

    Raises:
        ConfigError: a key is unknown, or a value is not allowed.
    """
    said = given_keys(section, place, _KEYS)
    if "num_speculative_tokens" not in said:
        raise ConfigError(
            f"{place}.num_speculative_tokens is missing; give the tokens drafted for a step, such as 3"
        )
    at = f"{place}.num_speculative_tokens"
    num = value_at(said["num_speculative_tokens"], at, int, 0, MOST_DRAFTS)
    if num == 0:
        return SpeculativeConfig()
    method = said.get("method", "draft_model" if "model" in said else "ngram")
    if method not in METHODS:
        raise ConfigError(
            f"{place}.method: got {shortened(method)}; {choices(str(method), METHODS)}"
        )
    how = chosen_at(said.get("acceptance", "drawn"), f"{place}.acceptance", "drawn", "expected")
    times = {
        name: number_at(said.get(name, 0.0), f"{place}.{name}", 0, MOST_US) for name in _OURS[2:]
    }
    if method not in WITHOUT_DRAFTER and "draft_step_us" not in said:
        raise ConfigError(
            f"{place}.draft_step_us is missing: {method} runs a drafter, which takes time; give its µs for one draft "
            "of a batch, measured or 0"
        )
    return SpeculativeConfig(
        method,
        num,
        _rates(said, num, place),
        _schedule(said.get(SCHEDULE), num, f"{place}.{SCHEDULE}"),
        how,
        **times,
    )


def _rates(
    said: Mapping[str, Any], num: int, place: str
) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Return acceptance rates by SLO class: per draft position, the rate given that earlier drafts were accepted."""
    ways = [name for name in RATES if name in said]
    if len(ways) != 1:
        raise ConfigError(
            f"{place}: give acceptance_rate or synthetic_acceptance_rates, {'not both' if ways else 'one of them'}; "
            "a server logs what it measures"
        )
    (name,) = ways
    place, value = f"{place}.{name}", said[name]
    if name == RATES[1]:
        return (("", _conditional(_list(value, num, place), place)),)
    if not isinstance(value, Mapping):
        return (("", _list(value, num, place)),)
    of_class = mapping(value, place, (*filter(None, SLO_CLASSES), "other"))
    if "other" not in of_class:
        raise ConfigError(
            f"{place}.other is missing; give the rate of all classes that are not named"
        )
    return tuple(
        ("" if slo_class == "other" else slo_class, _list(rates, num, f"{place}.{slo_class}"))
        for slo_class, rates in sorted(
            of_class.items(), key=lambda item: (item[0] != "other", item[0])
        )
    )


def _list(value: object, num: int, place: str) -> tuple[float, ...]:
    """Return one acceptance rate per draft position; a single number stands for all of them."""
    values = list(value) if isinstance(value, list | tuple) else [value] * num
    if len(values) != num:
        raise ConfigError(
            f"{place}: {len(values)} rates for {num} drafted tokens; give one of each, or one number"
        )
    return tuple(number_at(rate, place, 0, 1) for rate in values)


def _conditional(reach: tuple[float, ...], place: str) -> tuple[float, ...]:
    """Return each position's acceptance rate given accepted earlier drafts, from vLLM's unconditional rates."""
    before = (1.0, *reach)
    if any(rate > earlier for earlier, rate in itertools.pairwise(before)):
        raise ConfigError(
            f"{place}: a later draft is accepted more often than one before it; vLLM's rates never rise"
        )
    return tuple(rate / earlier if earlier else 0.0 for earlier, rate in itertools.pairwise(before))


def _schedule(value: object, num: int, place: str) -> tuple[tuple[int, int], ...]:
    """Return vLLM's batch-size ranges, from `[[1, 16, 3], [17, 64, 1]]` or `{"1-16": 3}`; gaps keep the earlier
    drafts.
    """
    if value is None:
        return ()
    entries: list[Any] = list(value) if isinstance(value, list | tuple) else [value]
    if isinstance(value, Mapping):
        entries = [(*_ends(str(key)), num) for key, num in value.items()]
    for entry in entries:
        is_range = isinstance(entry, list | tuple) and len(entry) == 3
        if not is_range or any(
            isinstance(number, bool) or not isinstance(number, int) for number in entry
        ):
            raise ConfigError(
                f"{place}: got {shortened(value)}, allowed is a list of [least batch, largest batch, drafts]"
            )
    ranges: list[tuple[int, int, int]] = [tuple(entry) for entry in entries]
    ranges.sort()
    ends = [0, *(end for _, end, _ in ranges)]
    if any(
        low <= end or last < low or of < 0
        for (low, last, of), end in zip(ranges, ends, strict=False)
    ):
        raise ConfigError(
            f"{place}: ranges of batches overlap, end before they begin, or have fewer than 0 drafts"
        )
    if len(ranges) >= MOST_RANGES:
        raise ConfigError(f"{place}: {len(ranges)} ranges, allowed are {MOST_RANGES - 1}")
    return tuple((low, min(of, num)) for low, _, of in ranges)


def _ends(key: str) -> tuple[int, ...]:
    match = _RANGE.fullmatch(key)
    return (int(match[1]), int(match[2])) if match else ()


# --- what follows for a cluster -------------------------------------------------------------------


def check(config: ClusterConfig) -> None:
    """Refuse drafted tokens where their effect is not defined.

    Raises:
        ConfigError: the profile claims to be equal to BLIS, or another configured mechanism is incompatible with
            drafts.
    """
    num = config.speculative_config.num_speculative_tokens
    if not num:
        return
    if config.is_august or not config.corrected:
        raise ConfigError(
            f"speculative_config: the profile {config.profile} claims to be equal to BLIS, whose revision drafts no "
            "tokens; take blis-2026-02 with corrected (--corrected true), or leave speculative_config out"
        )
    further = {
        f"event_source {config.event_source}": config.event_source != NONE,
        "in_flight_eviction": config.flow_control and config.in_flight_eviction,
    }
    refuse_beside(config, "speculative_config", "drafted tokens yet", **further)
    limits = (
        per_instance(config, setting)
        for setting in ("max_num_running_reqs", "max_num_scheduled_tokens")
    )
    for batch, budget in zip(*limits, strict=True):
        if batch * (num + 1) > budget:
            raise ConfigError(
                f"speculative_config: {batch} requests with {num} drafts each and a token of their own need "
                f"{batch * (num + 1)} tokens a step, and max_num_batched_tokens is {budget}; lower max_num_seqs or "
                "num_speculative_tokens"
            )
