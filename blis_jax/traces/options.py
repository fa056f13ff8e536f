"""Additions to a trace: another pace, SLO classes, shared prefixes.

All draws come from numpy's PCG64 under the given seed and a number per purpose, so that the draws of one option never
change those of another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.traces.rows import LATEST_US, MOST_TOKENS, NO_CODE, TraceRows
from blis_jax.workload.contents import Segments

SLO_STREAM, PREFIX_STREAM, SERVEGEN_STREAM = 1, 2, 3  # purposes of a seed's streams
PREFIX_MODELS = "none, shared:TOKENS, groups:NUMBER:TOKENS[:SHARE], sessions, deltas"


def generator(seed: int, purpose: int) -> np.random.Generator:
    """Return the random stream of one purpose, independent of the streams of other purposes."""
    return np.random.Generator(np.random.PCG64([seed, purpose]))


# --- pace -----------------------------------------------------------------------------------------


def scale_time(rows: TraceRows, factor: float) -> TraceRows:
    """Return the rows with arrival times multiplied by `factor`, cut to whole µs; 0.5 doubles the request rate."""
    if not 0 < factor < np.inf:
        raise ConfigError(
            f"--time-scale must be a number above 0, got {factor:g}; "
            "0.5 makes requests arrive twice as fast"
        )
    if factor == 1:
        return rows
    scaled = np.floor(rows.arrival_us * factor)
    if scaled.max(initial=0) >= LATEST_US:
        raise ConfigError(f"--time-scale {factor:g} moves arrivals beyond 2^60 µs; give less")
    return replace(rows, arrival_us=scaled.astype(np.int64))


# --- SLO classes ----------------------------------------------------------------------------------


def parse_slo_mix(text: str) -> dict[str, float]:
    """Return weights by class, from a text such as `critical:0.2,standard:0.5,sheddable:0.3`."""
    allowed = [name for name in SLO_CLASSES if name]
    weights: dict[str, float] = {}
    for part in text.split(","):
        name, _, weight = (piece.strip() for piece in part.partition(":"))
        if name not in allowed or name in weights:
            problem = "twice" if name in weights else f"not one of {', '.join(allowed)}"
            raise ConfigError(f"--slo-mix: class {name!r} is {problem}; write {_MIX_EXAMPLE}")
        try:
            weights[name] = float(weight)
        except ValueError:
            weights[name] = np.nan
        if not 0 <= weights[name] < np.inf:
            raise ConfigError(
                f"--slo-mix: the weight of {name} is {weight!r}, not a number of at least 0; "
                f"write {_MIX_EXAMPLE}"
            )
    if not sum(weights.values()) > 0:
        raise ConfigError(f"--slo-mix: all weights are 0; write {_MIX_EXAMPLE}")
    return weights


_MIX_EXAMPLE = "for instance critical:0.2,standard:0.5,sheddable:0.3"


def mix_classes(rows: TraceRows, weights: dict[str, float], seed: int) -> TraceRows:
    """Return the rows with a drawn class for every request without one; the turns of a session get the same class."""
    bounds = np.cumsum(list(weights.values()))
    indices = np.array([SLO_CLASSES.index(name) for name in weights], np.int32)
    drawn = generator(seed, SLO_STREAM).random(len(rows)) * bounds[-1]
    drawn = drawn[_first_of_session(rows)]
    chosen = indices[np.minimum(np.searchsorted(bounds, drawn, side="right"), len(indices) - 1)]
    return replace(rows, slo_class=np.where(rows.slo_class == 0, chosen, rows.slo_class))


def _first_of_session(rows: TraceRows) -> np.ndarray:
    """Return the first row of each request's session; the request's own row if it has no session."""
    row = np.arange(len(rows))
    if not len(rows.session_names):
        return row
    first = np.full(len(rows.session_names), len(rows))
    has_session = rows.session != NO_CODE
    np.minimum.at(first, rows.session[has_session], row[has_session])
    return np.where(has_session, first[rows.session], row)


# --- prefixes -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PrefixModel:
    """Groups of prompts with a common beginning; a prefix is part of the prompt, whose length does not change."""

    num_groups: int
    num_tokens: int
    share: float = 1.0  # of the requests that belong to a group


def parse_prefix_model(text: str) -> Callable[[TraceRows, int], TraceRows]:
    """Return the prefix model that `text` names, one of PREFIX_MODELS."""
    name, *numbers = text.strip().split(":")
    try:
        if name == "none" and not numbers:
            return lambda rows, seed: rows
        if name in ("sessions", "deltas") and not numbers:
            return lambda rows, seed: grow_sessions(rows, are_deltas=name == "deltas")
        if name == "shared" and len(numbers) == 1:
            model = PrefixModel(1, int(numbers[0]))
        elif name == "groups" and len(numbers) in (2, 3):
            share = float(numbers[2]) if len(numbers) == 3 else 1.0
            model = PrefixModel(int(numbers[0]), int(numbers[1]), share)
        else:
            raise ValueError
        is_possible = 1 <= model.num_tokens <= MOST_TOKENS and 1 <= model.num_groups <= MOST_TOKENS
        if not is_possible or not 0 <= model.share <= 1:
            raise ValueError
    except ValueError:
        raise ConfigError(
            f"--prefix-model {text!r} is not one of {PREFIX_MODELS} (at least 1 group and token, "
            "share 0 to 1); write for instance groups:8:1024:0.9"
        ) from None
    return lambda rows, seed: share_prefixes(rows, model, seed)


def share_prefixes(rows: TraceRows, model: PrefixModel, seed: int) -> TraceRows:
    """Return the rows with every request in a prefix group or in none; the turns of a session stay together.

    Members share their first `num_tokens` tokens, or all their prompt if it is shorter.
    """
    draws = generator(seed, PREFIX_STREAM)
    group = draws.integers(model.num_groups, size=len(rows))
    is_member = draws.random(len(rows)) < model.share
    first = _first_of_session(rows)
    group = np.where(is_member, group, NO_CODE)[first].astype(np.int32)
    length = np.where(group == NO_CODE, 0, np.minimum(rows.input_len, model.num_tokens))
    return replace(
        rows,
        prefix_group=group,
        prefix_len=length.astype(np.int32),
        prefix_group_names=tuple(f"group_{number}" for number in range(model.num_groups)),
    )


def short_turns(rows: TraceRows) -> tuple[int, int]:
    """Return how many later turns have a shorter prompt than the turn before, and how many later turns there are."""
    longer = _since_turn_before(rows, rows.input_len)
    return int(np.sum(longer < 0)), len(longer)


def turns_before_their_time(rows: TraceRows) -> int:
    """Return how many later turns arrive before the turn before them."""
    return int(np.sum(_since_turn_before(rows, rows.arrival_us) < 0))


def _since_turn_before(rows: TraceRows, values: np.ndarray) -> np.ndarray:
    """Return, for each later turn of a session, its value minus the value of the turn before."""
    members = np.flatnonzero(rows.session != NO_CODE)
    order = members[np.lexsort((rows.round_index[members], rows.session[members]))]
    return np.diff(values[order])[np.diff(rows.session[order]) == 0]


def grow_sessions(rows: TraceRows, *, are_deltas: bool = False) -> TraceRows:
    """Return the rows with the prompts and outputs of each session forming one growing text.

    A turn whose prompt is at least as long as the text so far begins with the whole text, and its prompt and output
    become the new text; a shorter prompt is a beginning of the text, and its output is private. If rows `are_deltas`,
    every prompt is extended by putting the text so far before it.

    Raises:
        ConfigError: no row has a session, or a prompt becomes too long.
    """
    if not len(rows.session_names):
        raise ConfigError(
            "--prefix-model sessions and deltas need a trace with sessions, but this one has none; "
            f"use one of {PREFIX_MODELS}"
        )
    members = np.flatnonzero(rows.session != NO_CODE)
    order = members[np.lexsort((members, rows.round_index[members], rows.session[members]))]
    end, input_len = np.zeros(len(rows), np.int64), rows.input_len.astype(np.int64)
    session, text = NO_CODE, 0
    for row in order.tolist():
        if rows.session[row] != session:
            session, text = rows.session[row], 0
        input_len[row] += text if are_deltas else 0
        end[row] = input_len[row]
        if end[row] >= text:
            end[row] += int(rows.output_len[row])
            text = end[row]
    if input_len.max() > MOST_TOKENS:
        raise ConfigError("--prefix-model deltas: a prompt grows beyond 2^31 tokens; use another")
    has_session = rows.session != NO_CODE
    segments = Segments(
        ptr=np.concatenate([[0], np.cumsum(has_session)]),
        content=rows.session[has_session].astype(np.int64),
        end=end[has_session],
    )
    return replace(rows, segments=segments, input_len=input_len.astype(np.int32))
