"""Requests and loads read from benchmark clients' result files, and checks that all clients share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blis_jax.errors import ConfigError, shortened
from blis_jax.files import input_files
from blis_jax.files.strict_yaml import read_yaml
from blis_jax.traces.measured.run import MeasuredRun, ServerSettings
from blis_jax.traces.rows import LATEST_US, MOST_TOKENS, make_rows


def no_requests(path: Path | str, summary: Summary) -> str:
    """Return the message that a summary without requests cannot be fitted."""
    return f"{path} has figures of {summary.tool} but no requests to fit coefficients to: {summary.lacking}"


def parse(path: Path) -> Any:
    """Return the document in a file; a tuple for several JSON documents; None for a file that is neither YAML nor JSON.

    Raises:
        ConfigError: the text begins as JSON but is damaged.
    """
    text = input_files.read_text(path, "a measured run")
    if path.suffix in (".yaml", ".yml"):
        return read_yaml(text, str(path))
    if not text.lstrip().startswith(("{", "[")):
        return None
    documents = _documents(text, path)
    return documents[0] if len(documents) == 1 else documents


def _documents(text: str, path: Path) -> tuple[Any, ...]:
    """Return all JSON documents of a text in order, whatever separates them and however they are indented."""
    documents: list[Any] = []
    place, decoder = 0, json.JSONDecoder()
    while (start := _BLANK.match(text, place).end()) < len(text):  # type: ignore[union-attr]
        try:
            document, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            raise ConfigError(_damaged(text, path, start, error, len(documents))) from None
        documents.append(document)
    return tuple(documents)


_BLANK = re.compile(r"[\s,]*")


def _damaged(text: str, path: Path, start: int, error: Exception, num_before: int) -> str:
    place = getattr(error, "pos", start)
    line = text.count("\n", 0, place) + 1
    if place >= len(text.rstrip()) - 1 or "Unterminated" in str(error):
        return (
            f"{path}, line {line}: the file ends in the middle of a record, after {num_before} whole ones: it was cut "
            "off; copy it again, or take that record out"
        )
    words = getattr(error, "msg", str(error))
    return f"{path}, line {line}: {words}; give JSON, or JSON with one object a line"


TO_MS = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1e3),
    **dict.fromkeys(("ms", "msec", "millisecond", "milliseconds"), 1.0),
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), 1e-3),
    **dict.fromkeys(("ns", "nanosecond", "nanoseconds"), 1e-6),
}


class Load(NamedTuple):
    """The load that a client reports; NaN where its file does not state it."""

    num_requests: float = math.nan
    rate_per_s: float = math.nan  # stated; NaN where the answers set the pace
    input_tokens: float = math.nan  # mean
    output_tokens: float = math.nan  # mean
    input_stdev: float = math.nan
    output_stdev: float = math.nan
    max_open: float = math.nan  # requests that it kept open at most; NaN for no limit


@dataclass(frozen=True)
class Summary:
    """Aggregate figures of a run, read from a file that does not list its requests."""

    tool: str
    figures: Mapping[tuple[str, str], float]  # by latency (ttft_ms) and statistic (p99), ms
    lacking: str  # what the file lacks, and how to get it
    load: Load
    settings: ServerSettings = field(default_factory=ServerSettings)
    num_failed: float = 0.0

    @property
    def remarks(self) -> list[str]:
        """Return remarks that a reader of the figures needs."""
        remarks = []
        if self.num_failed > 0:
            among = self.num_failed + self.load.num_requests
            of_all = f" of {among:.0f}" if math.isfinite(among) else ""
            remarks.append(
                f"{self.num_failed:.0f}{of_all} requests have failed: the figures are of the others"
            )
        for statistic in sorted({name for _, name in self.figures}):
            ttft, e2e = (self.figures.get((name, statistic)) for name in ("ttft_ms", "e2e_ms"))
            if ttft is not None and e2e is not None and ttft > e2e:
                remarks.append(
                    f"the {statistic} of TTFT, {ttft:,.4g} ms, is above that of E2E, {e2e:,.4g} ms: one of them is in "
                    "another unit, or of other requests; do not trust either"
                )
                break
        tpot = self.figures.get(("tpot_ms", "mean"), math.nan)
        return remarks + unlikely(tpot)


class Benchmark(NamedTuple):
    """One run in a file, with the words that distinguish it from the file's other runs."""

    label: str
    read: Callable[[], MeasuredRun | Summary]


@dataclass
class Sent:
    """Requests as a client saw them, one entry per request; NaN where a value is unknown."""

    start_s: list[float] = field(default_factory=list)  # sent, on any clock
    input_tokens: list[float] = field(default_factory=list)
    output_tokens: list[float] = field(default_factory=list)
    ttft_s: list[float] = field(default_factory=list)
    e2e_s: list[float] = field(default_factory=list)  # from sent to the last token
    num_failed: int = 0
    num_without_lengths: int = 0
    num_later_turns: int = 0  # of conversations
    num_with_media: int = 0  # whose prompts have images, sound or video
    num_contradictory: int = 0  # whose first token comes after the last
    num_negative: int = 0  # whose first or last token comes before they were sent
    num_warm_up: int = 0
    cached_tokens: float = 0.0  # of the prompts, found in the server's prefix cache
    gaps: list[tuple[float, float]] = field(default_factory=list)  # seen, and between its tokens
    num_empty_first: int = 0  # whose first chunk seems to hold no token

    def add_gaps(self, ttft_s: float, gaps_s: Sequence[float], num_due: float) -> None:
        """Add the gaps between a request's chunks, and their number if every token had a chunk of its own."""
        self.gaps.append((len(gaps_s), num_due))
        usual_s = sorted(gaps_s[1:])[len(gaps_s) // 2 - 1] if len(gaps_s) > 2 else math.inf
        if gaps_s:
            self.num_empty_first += gaps_s[0] > EMPTY_FIRST * max(ttft_s, usual_s)

    def add(self, start_s: float, tokens: tuple[float, float], ttft_s: float, e2e_s: float) -> None:
        """Add an answered request; `tokens` has the counts of its prompt and of its output."""
        if not (math.isfinite(start_s) and all(count >= 1 for count in tokens)):
            is_uncounted = any(map(math.isnan, tokens)) or (ttft_s > 0 and 0 in tokens)
            lacks_lengths = math.isfinite(start_s) and is_uncounted
            self.num_without_lengths += lacks_lengths
            self.num_failed += not lacks_lengths
            return
        self.start_s.append(start_s)
        self.input_tokens.append(tokens[0])
        self.output_tokens.append(tokens[1])
        is_negative = ttft_s < 0 or e2e_s < 0
        self.num_negative += is_negative
        self.num_contradictory += ttft_s > e2e_s and not is_negative
        is_streamed = 0 < ttft_s <= e2e_s <= LATEST_US / 1e6 and (tokens[1] == 1 or e2e_s > ttft_s)
        self.ttft_s.append(ttft_s if is_streamed else math.nan)
        self.e2e_s.append(e2e_s if is_streamed else math.nan)

    def run(
        self,
        source: str,
        settings: ServerSettings,
        notes: Sequence[str] = (),
        lasted_s: float = math.nan,
    ) -> MeasuredRun:
        """Return the requests as a measured run; `lasted_s` is the run's duration as the client states it.

        Raises:
            ConfigError: no request was answered, or none was streamed.
        """
        if not self.start_s and self.num_without_lengths:
            raise ConfigError(
                f"{source}: {self.num_without_lengths} requests were answered, but the file has not how many tokens "
                "their prompts and outputs have; measure again with token counts (a tokenizer, or the server's usage)"
            )
        if not self.start_s:
            raise ConfigError(none_answered(source, self.num_failed))
        if self.num_contradictory == len(self.start_s):
            raise ConfigError(
                f"{source}: in all {len(self.start_s)} requests the first token comes after the last; are the columns "
                "in place of each other, or in different units?"
            )
        if self.num_negative == len(self.start_s):
            raise ConfigError(
                f"{source}: all {len(self.start_s)} requests have their first or last token before they were sent, so "
                "their latencies are negative; were the two times taken from different clocks, or subtracted the wrong "
                "way round?"
            )
        if np.all(np.isnan(self.ttft_s)):
            raise ConfigError(
                f"{source} has no time of a first token: the client did not stream; measure again "
                "with streaming"
            )
        start = np.asarray(self.start_s)
        self._check(source, float(np.ptp(start)))
        rows = make_rows(
            np.round(1e6 * (start - start.min())),
            np.asarray(self.input_tokens),
            np.asarray(self.output_tokens),
        )
        return MeasuredRun(
            rows,
            1e6 * np.asarray(self.ttft_s),
            1e6 * np.asarray(self.e2e_s),
            settings,
            (*notes, *self._remarks(), *self._too_long(lasted_s)),
        )

    def _too_long(self, lasted_s: float) -> list[str]:
        """Return a remark if requests end well after the stated end of the run."""
        took_s = float(np.nanmax(np.add(self.start_s, self.e2e_s))) - min(self.start_s)
        if not took_s > TOO_LONG * lasted_s:
            return []
        return [
            f"requests end up to {took_s:,.4g} s after the first was sent, but the run lasted {lasted_s:,.4g} s: its "
            "times of requests seem to be in another unit than its format says"
        ]

    def _check(self, source: str, span_s: float) -> None:
        """Refuse times and lengths that a request table cannot hold."""
        longest = max(*self.input_tokens, *self.output_tokens)
        if longest > MOST_TOKENS:
            raise ConfigError(
                f"{source}: a request has {longest:g} tokens, allowed are {MOST_TOKENS}; correct the file"
            )
        if not 1e6 * span_s <= LATEST_US:
            raise ConfigError(
                f"{source}: requests start {span_s:g} s apart, allowed are {LATEST_US / 1e6:g}; correct the times"
            )

    def _remarks(self) -> list[str]:
        remarks = []
        if left := self.num_failed + self.num_without_lengths:
            remarks.append(
                f"{left} of {left + len(self.start_s)} requests have failed or "
                "lack their lengths: they are left out, though they may have cost the server time"
            )
        columns = (self.start_s, self.input_tokens, self.output_tokens, self.ttft_s, self.e2e_s)
        if repeated := len(self.start_s) - len(set(zip(*columns, strict=True))):
            remarks.append(
                f"{repeated} requests are equal to another one in their time of sending, lengths and latencies: if the "
                "file was joined with itself, take them out"
            )
        if self.num_later_turns:
            remarks.append(
                f"{self.num_later_turns} requests are later turns of conversations, sent after the answer before: the "
                "server may have had the beginning of their prompts in its cache, the fit computes all of them"
            )
        if self.num_with_media:
            remarks.append(
                f"{self.num_with_media} requests have images, sound or video: encoding them takes no time here, so a "
                "prefill token will seem too dear"
            )
        if self.num_contradictory:
            remarks.append(
                f"{self.num_contradictory} requests have their first token after their last: they arrive, but are "
                "not measured"
            )
        if self.num_negative:
            remarks.append(
                f"{self.num_negative} requests have a negative latency, a token before they were sent: they arrive, "
                "but are not measured"
            )
        if self.num_warm_up:
            remarks.append(
                f"{self.num_warm_up} requests of the warm-up arrive, but are not measured"
            )
        num_silent = int(np.sum(np.isnan(self.ttft_s)))
        num_silent -= self.num_contradictory + self.num_negative + self.num_warm_up
        if num_silent > 0:
            remarks.append(
                f"{num_silent} requests have no time of a first token: they arrive, but are not measured"
            )
        remarks += few_gaps(self.gaps)
        if 2 * self.num_empty_first > len(self.gaps):
            remarks.append(
                f"in {self.num_empty_first} requests the second chunk comes long after the first: the first one seems "
                "to hold no token (a role alone), so TTFT is too short and a gap too long; trust E2E"
            )
        share = self.cached_tokens / sum(self.input_tokens)
        if share > 0.01:
            remarks.append(
                f"the server had {100 * share:.0f} % of the prompt tokens in its prefix cache, but the "
                "file does not say which prompts begin alike: the fit computes all of them, so a "
                "prefill token will seem too cheap"
            )
        return remarks


TOO_LONG = 1.5  # times the length of a run, after which no request of it ends
EMPTY_FIRST = 2.0  # times TTFT and the usual gap: the first gap behind a chunk without a token
FEW_GAPS = 0.8  # of the gaps between tokens


def few_gaps(gaps: Sequence[tuple[float, float]]) -> list[str]:
    """Return a remark if requests have far fewer gaps than tokens; `gaps` has pairs of observed and expected gaps."""
    seen, due = (sum(column) for column in zip(*gaps, strict=True)) if gaps else (0.0, 0.0)
    if not seen < FEW_GAPS * due:
        return []
    return [
        f"the file has {seen:,.0f} gaps for the {due:,.0f} between its output tokens: chunks hold several tokens, or "
        "tokens (of reasoning) come before the first content, so TTFT is not that of the first token; trust E2E"
    ]


LEAST_TPOT_MS, MOST_TPOT_MS = 0.05, 2000.0  # of servers of language models


def unlikely(tpot_ms: float) -> list[str]:
    """Return a remark if a mean TPOT is implausible for a server."""
    if not (tpot_ms < LEAST_TPOT_MS or tpot_ms > MOST_TPOT_MS):
        return []
    return [
        f"the mean TPOT is {tpot_ms:,.3g} ms, which no server has: the file's latencies seem to be in another unit "
        "than its format or its columns say"
    ]


def none_answered(source: str, num_failed: float) -> str:
    """Return the message for a run in which no request was answered."""
    what = f"all {num_failed:.0f} requests have failed" if num_failed else "no request was answered"
    return f"{source}: {what}, so there is nothing to fit or compare; see the server's log"


def closed_loop(limit: float | None) -> str:
    """Return the remark that a client waits for answers before it sends further requests."""
    most = "" if limit is None or not math.isfinite(limit) else f" (at most {limit:.0f} open)"
    return (
        f"the client waited for answers before it sent on{most}: requests are replayed at the times at "
        "which they were sent, as if these did not depend on the server"
    )


def number(value: object, what: str) -> float:
    """Return a value as a number, NaN for none; `what` names the value in errors."""
    if value is None:
        return math.nan
    if isinstance(value, str) and value.strip().lower() in ("nan", "null", "none"):
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{what} is {shortened(value)}; give a number or leave it out")
    return float(value)


def numbers_in(values: object, what: str) -> list[float]:
    """Return the numbers in a list, NaN for none; `what` names the list in errors."""
    if not isinstance(values, list):
        raise ConfigError(f"{what} is {shortened(values)}; give a list of numbers")
    return [number(value, what) for value in values]
