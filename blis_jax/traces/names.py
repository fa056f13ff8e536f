"""Common names of the columns of a request table, and the units that these names contain.

Names are compared without case, spaces, - and _; of a name with points, such as `usage.prompt_tokens`, only the last
part is compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product

import numpy as np

from blis_jax.lazy import pandas
from blis_jax.traces.columns import Check, Column, plain_name
from blis_jax.traces.rows import MOST_NAMED, MOST_TOKENS

_PREFIXES = ("", "num", "n", "number", "number of", "total", "request")
_ENDINGS = (
    "tokens", "token", "toks", "num tokens", "token count", "tokens count", "token num", "token len", "token length",
)  # fmt: skip
_LENGTHS = ("len", "length", "seq len", "seq length", "sequence length")


def _spelt(usual: str, stems: Sequence[str], with_length: Sequence[str]) -> tuple[str, ...]:
    """Return names for a number of tokens: the usual names, then all combinations of prefix, stem and ending."""
    made = [
        f"{before} {stem} {after}".strip()
        for stem in stems
        for before, after in product(_PREFIXES, (*_ENDINGS, *_LENGTHS * (stem in with_length)))
    ]
    turned = [f"tokens {stem}" for stem in stems]
    return tuple(dict.fromkeys(usual.split() + made + turned))


# The names of a column, ours first; of JSON the innermost names count.
NAMES: dict[str, tuple[str, ...]] = {
    "input_tokens": _spelt(
        "input_tokens prompt_tokens isl n_input n_prompt num_input tokens_in in_tokens request_tokens prompt_size",
        ("input", "prompt", "prefill", "context"),
        ("input", "prompt", "prefill"),
    ),
    "output_tokens": _spelt(
        "output_tokens completion_tokens osl n_output n_completion num_output tokens_out out_tokens token_size",
        ("output", "completion", "decode", "generated", "generation", "gen", "response", "answer", "candidates"),
        ("output", "completion", "decode", "generated", "generation", "gen"),
    ),
    **{
        key: tuple(names.split())
        for key, names in {
            "tenant": "tenant tenant_id organization org_id",
            "client": "client client_id user user_id customer customer_id",
            "session": "session session_id conversation conversation_id thread_id chat_id",
            "round_index": "round_index turn_index turn",
            "prefix_group": "prefix_group prefix_id",
            "prefix_tokens": "prefix_tokens prefix_len prefix_length shared_prefix_tokens",
        }.items()
    },
}  # fmt: skip

UNIT_ENDINGS = {
    "us": ("us", "micros", "usec", "microseconds"),
    "s": ("s", "sec", "secs", "seconds"),
    "ms": ("ms", "msec", "millis", "milliseconds"),
    "ns": ("ns", "nsec", "nanos", "nano", "nanoseconds", "unix_nano"),
}


def _with_units(listed: str) -> dict[str, str | None]:
    """Return names with their units; names in µs first, and None for a name without a unit."""
    stems = listed.split()
    named = {
        f"{stem}_{ending}": unit
        for unit, endings in UNIT_ENDINGS.items()
        for stem in stems
        for ending in endings
    }
    return {**named, **dict.fromkeys(stems)}


TIMES = _with_units(
    "arrival arrival_time timestamp time start_time request_time created_at arrived_at arrival_timestamp "
    "start_timestamp request_arrival_time request_arrival request_timestamp request_start_time request_start "
    "send_time sent_at sent_time received_at receive_time request_received launch_time submit_time submitted_at "
    "submission_time dispatch_time issue_time queued_time enqueue_time relative_time arrival_offset time_offset offset "
    "created arrived arrive_time ts datetime date_time date"
) | {"t": None}
# from the answer to a session's turn to the next turn, which has no arrival
DELAYS = _with_units("delay")
LATENCIES = {
    "ttft": _with_units("ttft time_to_first_token first_token_latency"),
    "e2e": _with_units(
        "e2e e2e_latency e2el e2e_time latency request_latency total_latency end_to_end_latency end_to_end total_time "
        "response_time duration request_duration"
    ),
    "tpot": _with_units(
        "tpot itl time_per_output_token inter_token_latency mean_itl itl_mean avg_itl mean_tpot"
    ),
    "generation": _with_units("generation_time decode_time"),  # from the first token to the last
}

# columns that mark failed requests
STATUSES = ("status", "status_code", "http_status", "http_code", "response_code")
SUCCESSES = ("success", "succeeded", "is_success", "ok")
ERRORS = ("error", "error_code", "error_message", "error_type", "exception")
GIVEN_UP = ("cancelled", "canceled", "is_cancelled", "aborted", "is_aborted", "failed", "is_error")
ENDS = ("finish_reason", "finish_reason_normalized", "stop_reason")
MODELS = ("model", "model_name", "model_id")


def column_key(name: str) -> str:
    """Return the part of a column's name that is compared, without case and separators."""
    return plain_name(name.rpartition(".")[2] or name)


def found_name(names: Iterable[str], wanted: Iterable[str]) -> str | None:
    """Return the file's column that comes first among the wanted names; None if the file has none of them."""
    known: dict[str, str] = {}
    for name in names:
        known.setdefault(column_key(name), name)
    return next((known[key] for key in map(plain_name, wanted) if key in known), None)


def with_unit(
    names: Iterable[str], wanted: Mapping[str, str | None]
) -> tuple[str, str | None] | None:
    """Return the file's column that comes first among the wanted names, and the unit in its name; None if none does."""
    listed = [name for name in names if not _PLURAL.search(name)]
    for name, unit in wanted.items():
        if (present := found_name(listed, [name])) is not None:
            return present, unit
    return None


_PLURAL = re.compile(r"[a-z]{2}s$")  # start_times is a list, start_time_s has a unit
_FAILED = re.compile(
    r"(err|fail|time[d_ -]*out|cancel|abort|reject|drop|shed|refus|exception)", re.I
)
_NOTHING = frozenset(("", "none", "null", "nan", "false", "0", "200", "{}", "[]", "ok", "no error"))


def _failed_status(text: str) -> bool:
    number = pandas.to_numeric(text, errors="coerce")
    return bool(number >= 400) or _FAILED.match(text) is not None


_FAILURES: tuple[tuple[tuple[str, ...], Callable[[str], bool]], ...] = (
    (STATUSES, _failed_status),
    (SUCCESSES, lambda text: text.lower() in ("false", "f", "0", "no")),
    (ERRORS, lambda text: text.lower() not in _NOTHING),
    (GIVEN_UP, lambda text: text.lower() in ("true", "t", "1", "yes")),
    (ENDS, lambda text: _FAILED.match(text) is not None),
)


# cached tokens, which Anthropic's input_tokens leave out
_OF_CACHE = ("cache_read_input_tokens", "cache_creation_input_tokens")
_FAILED_KEY, _CACHED_KEY = "failed: ", "cached: "  # how keys of further columns begin


def further_columns(names: Sequence[str]) -> dict[str, Column]:
    """Return the columns that mark failed requests (1 if failed), and the columns of cached prompt tokens."""
    columns = ((found_name(names, wanted), says_so) for wanted, says_so in _FAILURES)
    failed = {
        f"{_FAILED_KEY}{name}": Column(
            (name,), parse=partial(_flags, says_so), is_text=True, default=0
        )
        for name, says_so in columns
        if name is not None
    }
    is_anthropic = found_name(names, NAMES["input_tokens"]) == found_name(names, ["input_tokens"])
    found = (found_name(names, [wanted]) for wanted in _OF_CACHE if is_anthropic)
    cached = [name for name in found if name is not None]
    return failed | {f"{_CACHED_KEY}{name}": Column((name,), parse=_tokens) for name in cached}


def _tokens(values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    """Return counts of tokens, with 0 for a cell that is not a number."""
    counts = pandas.to_numeric(values, errors="coerce").fillna(0).to_numpy(np.float64)
    return np.clip(counts, 0, MOST_TOKENS).astype(np.int64), np.ones(len(counts), bool)


def whole_prompts(
    columns: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the columns without those of `further_columns`, with cached tokens added to prompts, and a note."""
    cached = [columns[key] for key in columns if key.startswith(_CACHED_KEY)]
    kept = {
        key: values
        for key, values in columns.items()
        if not key.startswith((_FAILED_KEY, _CACHED_KEY))
    }
    if not cached:
        return kept, []
    kept["input_tokens"] = np.minimum(sum(cached, kept["input_tokens"]), MOST_TOKENS)
    return kept, [
        f"prompts are input_tokens plus {' plus '.join(_OF_CACHE)}: Anthropic's input_tokens leave out what is in the "
        "cache"
    ]


def _flags(says_so: Callable[[str], bool], values: pandas.Series) -> tuple[np.ndarray, np.ndarray]:
    codes, texts = pandas.factorize(values)
    flags = np.array([*(says_so(str(text)) for text in texts), False], np.int64)
    return flags[codes], np.ones(len(values), bool)


HAS_NOT_FAILED = Check(
    "failed requests (by their status or error)",
    lambda columns: np.logical_not(
        sum((columns[key] for key in columns if key.startswith(_FAILED_KEY)), np.int64(0))
    ),
    is_fault=False,
)


def several_models(values: Iterable[object]) -> list[str]:
    """Return a note if requests name more than one model."""
    models = sorted({str(value) for value in values} - {"", "None", "nan"})
    if len(models) < 2:
        return []
    more = ", …" if len(models) > MOST_NAMED else ""
    return [
        f"requests name {len(models)} models ({', '.join(models[:MOST_NAMED])}{more}): all are sent to the one that is "
        "simulated; to study one of them, keep its rows"
    ]


def lacks(names: Sequence[str]) -> str | None:
    """Return which columns a table of requests lacks; None if it lacks none, or does not look like such a table."""
    parts = {
        "a time of arrival": (TIMES, "arrival_s"),
        "the tokens of prompts": (NAMES["input_tokens"], "input_tokens"),
        "the tokens of outputs": (NAMES["output_tokens"], "output_tokens"),
    }
    missing = {
        what: ours for what, (wanted, ours) in parts.items() if found_name(names, wanted) is None
    }
    if not 0 < len(missing) < len(parts):
        return None
    wanted = " and ".join(f"{what} (name it {ours})" for what, ours in missing.items())
    return f"it has no column for {wanted}; its columns are {', '.join(names)}"


_WITH_TIMES = (
    "give the result of vllm bench serve --save-detailed, or a line for each request with timestamp, input_tokens and "
    "output_tokens"
)
_FOREIGN = (  # common files without request times and tokens, by their beginning
    (r"\s*<(!doctype|html|\?xml)", "it is a web page; download the file itself, on GitHub its raw form"),
    (r"version https://git-lfs", "it stands for a file that Git LFS keeps; fetch the file itself with git lfs pull"),
    (r".*\"conversations\"\s*:", f"it has conversations, as ShareGPT has, without times and tokens; {_WITH_TIMES}"),
    (r".*\"custom_id\".*\"body\"", f"it has requests of OpenAI's batches, without times and tokens; {_WITH_TIMES}"),
    (r".*\"(turns|messages)\"\s*:\s*\[", "it has a conversation a line; give a line for each turn, with session_id, "
     "timestamp (or for later turns delay), input_tokens and output_tokens"),
    (r".*\"resourceSpans\"", f"it has spans of OpenTelemetry; {_WITH_TIMES}"),
    (r"# (HELP|TYPE) ", f"it has counters of a server, which are sums over requests; {_WITH_TIMES}"),
    (r"#", "its first line is a comment; begin with the columns' names"),
    (r".*\"coefficients\"\s*:", "it is a fit, which --coefficients-from takes"),
    (r"(\(\w+ pid=\d+\) )?(INFO|WARNING|DEBUG|ERROR)\b", f"it is the log of a server; {_WITH_TIMES}"),
    (r"=+ Serving Benchmark Result", "it is what a client printed; measure again with --save-result --save-detailed, "
     "and give the JSON file"),
    (r".*\"(avg_latency|elapsed_time)\"\s*:", "it has figures of vllm bench latency or throughput, whose requests do "
     f"not arrive one after the other; {_WITH_TIMES}"),
    (r"Metric,\s*avg\b", "it has figures of AIPerf or GenAI-Perf; give profile_export.jsonl, or for the figures "
     "profile_export_aiperf.json, which lie beside it"),
    (r"[^{]*\bmean_(ttft|tpot|itl|e2el)_ms\b", f"it has figures of whole runs, one a line; {_WITH_TIMES}"),
    (r"[\d.eE+:TZ -]+([,;\t][\d.eE+:TZ -]*)+\s*$", "its first line has numbers and no names; write the "
     "columns' names above it, such as timestamp,input_tokens,output_tokens"),
)  # fmt: skip


def foreign(head: str) -> str | None:
    """Return what kind of file begins with this line, if it holds no requests, and which file to give instead."""
    return next((what for form, what in _FOREIGN if re.match(form, head, re.IGNORECASE)), None)
