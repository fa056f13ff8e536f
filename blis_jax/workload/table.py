"""The request table: every request of a workload as arrays, with shared contents as radix nodes.

Tokens never appear. A *node* is a maximal run of consecutive KV blocks shared by the same two or more requests, and is
also cut where the prompt of any of these requests ends; so in each request a node lies either wholly in the prompt or
wholly in the output. Blocks outside all nodes are private.
"""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from blis_jax.core.pytrees import pytree
from blis_jax.errors import ConfigError
from blis_jax.files.input_files import check_regular
from blis_jax.workload.contents import NO_NODE, Runs, fold_runs, prompt_keys, ranks

if TYPE_CHECKING:
    import jax
    from jaxtyping import Int32, Int64
    from numpy.typing import ArrayLike

    Array = jax.Array | np.ndarray

NEVER_US = np.iinfo(np.int64).max  # arrival of a padding row
LATEST_US = 2**60  # arrivals from here on would overflow a clock's sums
NO_SESSION = np.int32(-1)  # a single-turn request
NO_PROMPT_KEY = np.int32(-1)  # a padding row's prompt


@pytree
class RequestTable:
    """The requests of one workload by arrival; padding rows (arrival NEVER_US) come last."""

    arrival_us: Int64[Array, " request"]
    input_len: Int32[Array, " request"]  # prompt tokens, shared prefix included
    output_len: Int32[Array, " request"]  # tokens the request will produce
    slo_class: Int32[Array, " request"]  # index into blis_jax.core.types.SLO_CLASSES
    tenant: Int32[Array, " request"]
    client: Int32[Array, " request"]
    session: Int32[Array, " request"]  # NO_SESSION for a single-turn request
    round_index: Int32[Array, " request"]  # turn within the session
    tie_rank: Int32[Array, " request"]  # rank by (arrival, id as text), a permutation
    path_nodes: Int32[Array, "request depth"]  # nodes from block 0 on, NO_NODE at the end
    prompt_key: Int32[Array, " request"]  # dense; equal iff the last full prompt block is
    # the node's first block, counted from the start of the prompt
    node_start: Int32[Array, " node"]
    node_blocks: Int32[Array, " node"]  # its length; 0 marks a padding node

    @property
    def num_rows(self) -> int:
        """Return the number of rows, padding included."""
        return int(self.arrival_us.shape[-1])

    @property
    def num_nodes(self) -> int:
        """Return the number of node rows, padding included."""
        return int(self.node_start.shape[-1])

    @property
    def depth(self) -> int:
        """Return the greatest number of nodes on one request's path."""
        return int(self.path_nodes.shape[-1])


# columns that only some tables have, so that an engine without them does not contain their mechanisms
FURTHER = {
    "has_media": np.int32,  # 1: it brings images or sound, which an encode pool of BLIS 2026-08 asks for
    "timeout_us": np.int64,  # from arrival to deadline, 0: none
    "is_elsewhere": np.int32,  # 1: it asks for a model that no instance has
    "adapter": np.int32,  # place in the cluster's list of LoRA adapters plus 1, 0: none
    "slo_target_us": np.int64,  # from the gateway's queue to its deadline there, 0: its class's
}


@functools.cache
def _kind_with(names: tuple[str, ...]) -> type[RequestTable]:
    """Return the class of tables that have these additional columns."""
    words = "".join(part.capitalize() for name in names for part in name.split("_"))
    columns = {"__annotations__": dict.fromkeys(names, Any)}
    return pytree(type(f"RequestTableWith{words}", (RequestTable,), columns))


def with_column(table: RequestTable, name: str, values: ArrayLike) -> RequestTable:
    """Return the table with an additional column of `FURTHER`; existing columns are kept."""
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    columns[name] = np.asarray(values, FURTHER[name])
    return _kind_with(tuple(column for column in FURTHER if column in columns))(**columns)


def with_media(table: RequestTable, has_media: ArrayLike) -> RequestTable:
    """Return the table with a column that marks requests with images or sound; unchanged if there are none."""
    return with_column(table, "has_media", has_media) if np.any(has_media) else table


def with_timeouts(table: RequestTable, timeout_us: ArrayLike) -> RequestTable:
    """Return the table with each request's time from arrival to deadline in µs, 0 for none."""
    return with_column(table, "timeout_us", timeout_us)


def with_targets(table: RequestTable, target_us: np.ndarray | None) -> RequestTable:
    """Return the table with each request's own TTFT target in µs (0: none), for the gateway's queue; None adds none."""
    return table if target_us is None else with_column(table, "slo_target_us", target_us)


def with_models(
    table: RequestTable, models: np.ndarray | None, serves: Callable[[str], bool]
) -> RequestTable:
    """Return the table with a column that marks requests whose model no instance serves; unchanged if there are none.

    Args:
        table: the requests.
        models: text `[request]`, the model that each request names; None if no request names one.
        serves: returns whether instances serve a model, `ClusterConfig.serves`.
    """
    known = {name: serves(name) for name in set(() if models is None else models.tolist())}
    if models is None or all(known.values()):
        return table
    return with_column(table, "is_elsewhere", [not known[name] for name in models.tolist()])


@dataclass(frozen=True)
class WorkloadNames:
    """Texts of the integer columns, and further host data that the engine does not read."""

    tenant_names: tuple[str, ...] = ()
    prefix_group_names: tuple[str, ...] = ()
    request_numbers: np.ndarray | None = None  # n of request_<n>; the row's if None
    # when requests are given up, 0 for never; None: no request is
    deadline_us: np.ndarray | None = None
    # text[request]: the model it asks for, empty for any; None: none does
    models: np.ndarray | None = None
    # text[request]: the LoRA adapter it names, empty for none; None: none does
    adapters: np.ndarray | None = None
    # bound of each request's own, 0 for none; None: none has one
    slo_target_us: np.ndarray | None = None
    session_names: tuple[str, ...] = ()


def tenant_order(name: str) -> str:
    """Return the key, a name, by which tenants are sorted, so that policies that take turns follow BLIS's order."""
    return name or "default"


def tenants_in_order(names: Iterable[object]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the new code `[tenant]` of each tenant, and the names in the order of these codes."""
    texts = [str(name) for name in names]
    order = sorted(range(len(texts)), key=lambda at: tenant_order(texts[at]))
    return ranks(order), tuple(texts[at] for at in order)


def text_rank(num_requests: int) -> np.ndarray:
    """Return the rank of `request_<i>` in byte-wise text order, int32 [request]."""
    return ranks(np.argsort(np.arange(num_requests).astype(str), kind="stable"))


def from_golden(
    arrays: Mapping[str, Any], block_size: int | None = None, least_prompt: int = 1
) -> RequestTable:
    """Return a golden workload as a request table, with block ids folded into radix nodes; arrays stay on the host.

    A prompt with fewer than `least_prompt` tokens is refused.
    """
    file_block_size = int(arrays["block_size"])
    if block_size not in (None, file_block_size):
        raise ConfigError(
            f"block_size {block_size} was asked for, but the workload's contents are cut into "
            f"blocks of {file_block_size} tokens; set the KV block size to {file_block_size}"
        )
    _check_range(arrays)
    input_len = np.asarray(arrays["input_len"], np.int32)
    arrival_us = np.asarray(arrays["arrival_us"], np.int64)
    _check_rows(arrays, arrival_us, input_len, least_prompt)
    block_ptr = np.asarray(arrays["block_ptr"], np.int64)
    block_ids = np.cumsum(arrays["block_ids_delta"], dtype=np.int64)
    prompt_blocks = input_len // file_block_size
    path_nodes, node_start, node_blocks = fold_runs(
        _block_runs(block_ptr, block_ids), prompt_blocks
    )
    order = np.lexsort((np.asarray(arrays["id_rank"]), arrival_us))
    table = RequestTable(
        arrival_us=arrival_us,
        input_len=input_len,
        output_len=np.asarray(arrays["output_len"], np.int32),
        slo_class=np.asarray(arrays["slo_class"], np.int32),
        tenant=_tenants(arrays),
        client=np.asarray(arrays["client"], np.int32),
        session=np.asarray(arrays["session"], np.int32),
        round_index=np.asarray(arrays["round_index"], np.int32),
        tie_rank=ranks(order),
        path_nodes=path_nodes,
        prompt_key=prompt_keys(
            _prompt_contents(
                block_ptr, block_ids, prompt_blocks, np.asarray(arrays["short_input_id"], np.int64)
            )
        ),
        node_start=node_start,
        node_blocks=node_blocks,
    )
    return with_media(table, arrays.get("multimodal", 0))


def _tenants(arrays: Mapping[str, Any]) -> np.ndarray:
    """Return each request's tenant, numbered by name; the file numbers tenants by first use."""
    tenants = np.asarray(arrays["tenant"], np.int32)
    code, _ = tenants_in_order(arrays.get("tenant_names", ()))
    return code[tenants] if len(code) > tenants.max(initial=-1) else tenants


def load_table(
    path: str | Path, block_size: int | None = None
) -> tuple[RequestTable, WorkloadNames]:
    """Return the request table in an npz file of the golden format."""
    arrays = _read_arrays(Path(path))
    # recorded with August's revision, whose policies do not distinguish short prompts
    if "deadline_us" in arrays:
        arrays.setdefault("short_input_id", np.zeros(len(arrays["deadline_us"]), np.int64))
    missing = sorted(_REQUIRED - arrays.keys())
    if missing:
        raise ConfigError(
            f"{path} has no array {missing[0]!r}, which every workload file needs; "
            f"give a file of the golden workload format"
        )
    try:
        table = from_golden(arrays, block_size)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    deadline_us = arrays.get("deadline_us", np.zeros(0, np.int64))
    names = WorkloadNames(
        tenant_names=tenants_in_order(arrays["tenant_names"])[1],
        prefix_group_names=tuple(str(name) for name in arrays["prefix_group_names"]),
        deadline_us=deadline_us if np.any(deadline_us) else None,
        session_names=tuple(map(str, arrays.get("session_names", ()))),
    )
    return table, names


def pad_to(table: RequestTable, num_requests: int, num_nodes: int, depth: int) -> RequestTable:
    """Return the table padded with rows that never arrive and nodes that nobody holds, so that fewer sizes occur."""
    for name, wanted, present in (
        ("num_requests", num_requests, table.num_rows),
        ("num_nodes", num_nodes, table.num_nodes),
        ("depth", depth, table.depth),
    ):
        if wanted < present:
            raise ConfigError(
                f"{name} {wanted} is below the table's own {present}; pad to {present} or more"
            )
    more = num_requests - table.num_rows
    padding: dict[str, Any] = {
        "arrival_us": NEVER_US,
        "input_len": 1,
        "output_len": 1,
        "session": NO_SESSION,
    }
    padding["prompt_key"] = NO_PROMPT_KEY
    columns = {name: np.asarray(getattr(table, name)) for name in type(table).__dataclass_fields__}
    padded = {
        name: _extended(column, more, padding.get(name, 0))
        for name, column in columns.items()
        if name not in ("tie_rank", "path_nodes", "node_start", "node_blocks")
    }
    more_ranks = np.arange(table.num_rows, num_requests, dtype=np.int32)
    padded["tie_rank"] = np.concatenate([columns["tie_rank"], more_ranks])
    paths = np.full((num_requests, depth), NO_NODE, columns["path_nodes"].dtype)
    paths[: table.num_rows, : table.depth] = columns["path_nodes"]
    padded["path_nodes"] = paths
    for name in ("node_start", "node_blocks"):
        padded[name] = _extended(columns[name], num_nodes - table.num_nodes, 0)
    return type(table)(**cast(Any, padded))


def _extended(column: np.ndarray, more: int, value: int | np.integer) -> np.ndarray:
    """Return the column with `more` entries appended; `np.pad` takes ten times as long."""
    return np.concatenate([column, np.full(more, value, column.dtype)])


_PER_REQUEST = [
    "arrival_us",
    "input_len",
    "output_len",
    "slo_class",
    "tenant",
    "client",
    "session",
    "round_index",
    "id_rank",
    "short_input_id",
]
_REQUIRED = {
    *_PER_REQUEST,
    "block_ptr",
    "block_ids_delta",
    "block_size",
    "tenant_names",
    "prefix_group_names",
}


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(check_regular(path), allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist; give the path of a workload .npz file") from None
    except ConfigError:
        raise
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile):
        raise ConfigError(
            f"{path} is not a readable .npz archive without pickled objects"
        ) from None


def _check_range(arrays: Mapping[str, Any]) -> None:
    """Refuse numbers that the table's types cannot hold, before the numbers are converted."""
    for name in _PER_REQUEST:
        values, bits = np.asarray(arrays[name]), 63 if name == "arrival_us" else 31
        if values.dtype.kind not in "iuf":
            continue
        is_bad = ~((values >= -(2.0**bits)) & (values < 2.0**bits)).reshape(-1)
        if is_bad.any():
            row = int(np.argmax(is_bad))
            raise ConfigError(
                f"{name}[{row}] is {values.reshape(-1)[row]}; allowed are whole numbers of {bits + 1} "
                "bits"
            )


def _check_rows(
    arrays: Mapping[str, Any], arrival_us: np.ndarray, input_len: np.ndarray, least_prompt: int
) -> None:
    """Refuse arrays that contradict each other; their meaning is not checked further."""
    num_requests = len(arrival_us)
    for name in _PER_REQUEST:
        if np.shape(arrays[name]) != (num_requests,):
            raise ConfigError(
                f"{name} has shape {np.shape(arrays[name])}, allowed is ({num_requests},), "
                f"one value per request"
            )
    if np.any(np.diff(arrival_us) < 0):
        row = int(np.argmax(np.diff(arrival_us) < 0)) + 1
        raise ConfigError(
            f"arrival_us falls from row {row - 1} to row {row}; requests must be sorted by arrival"
        )
    if num_requests and input_len.min() < least_prompt:
        row = int(np.argmin(input_len))
        raise ConfigError(f"input_len[{row}] is {input_len[row]}; a prompt has at least 1 token")
    tokens = input_len + np.asarray(arrays["output_len"], np.int64)
    full_blocks = tokens // int(arrays["block_size"])
    block_ptr = np.asarray(arrays["block_ptr"], np.int64)
    consistent = len(block_ptr) == num_requests + 1 and np.array_equal(
        np.diff(block_ptr), full_blocks
    )
    deltas = np.asarray(arrays["block_ids_delta"], np.int64)
    if not consistent or block_ptr[-1] != len(deltas) or np.cumsum(deltas).min(initial=0) < 0:
        raise ConfigError(
            "block_ptr and block_ids_delta do not list (input_len + output_len) // block_size "
            "blocks per request; write the file again"
        )


def _block_runs(block_ptr: np.ndarray, block_ids: np.ndarray) -> Runs:
    """Return every block as a separate run."""
    row = np.repeat(np.arange(len(block_ptr) - 1), np.diff(block_ptr))
    position = np.arange(len(block_ids)) - block_ptr[row]
    return Runs(row, block_ids, position, np.ones(len(block_ids), np.int64))


def _prompt_contents(
    block_ptr: np.ndarray,
    block_ids: np.ndarray,
    prompt_blocks: np.ndarray,
    short_input_id: np.ndarray,
) -> np.ndarray:
    """Return the content of each prompt's last full block, or of the whole prompt if it has no full block."""
    content = -1 - short_input_id
    has_block = prompt_blocks > 0
    content[has_block] = block_ids[(block_ptr[:-1] + prompt_blocks - 1)[has_block]]
    return content
