"""What makes runs that are written part by part: requests drawn once, and a runner of many rows."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

from blis_jax.runs.driver import Runner
from blis_jax.runs.options import default_form, num_workers
from blis_jax.runs.simulation import Options

if TYPE_CHECKING:
    from blis_jax.workload.table import RequestTable

RUNS_PER_PART = 512
ROWS_PER_CALL = 8  # on a CPU: a run that livelocks holds up few others
MOST_EVICTIONS = 16_384  # of a run that thrashes, so that it need not be made twice
MOST_BLOCKS = 16_384  # of a pool that programs are prepared for


class DrawnTables:
    """Requests by what decides them; the ones used longest ago are dropped."""

    def __init__(self, most_requests: int) -> None:
        """`most_requests` are kept, in all tables together."""
        self.most_requests, self.num_requests = most_requests, 0
        self.kept: OrderedDict[Hashable, RequestTable] = OrderedDict()

    def table(self, key: Hashable, draw: Callable[[], RequestTable]) -> RequestTable:
        """The requests of a key, drawn if they are not at hand."""
        if key not in self.kept:
            self.kept[key] = draw()
            self.num_requests += self.kept[key].num_rows
        self.kept.move_to_end(key)
        while self.num_requests > self.most_requests and len(self.kept) > 1:
            self.num_requests -= self.kept.popitem(last=False)[1].num_rows
        return self.kept[key]


def part_runner(num_blocks: int | None) -> Runner:
    """A runner of parts; `num_blocks` of pools that may run out, None if none does."""
    options = Options(form=default_form())
    if num_blocks is not None:
        options = Options(form=default_form(), num_blocks=num_blocks, num_evictions=MOST_EVICTIONS)
    is_one_call = options.form == "lanes"
    return Runner(options, RUNS_PER_PART if is_one_call else ROWS_PER_CALL * num_workers())
