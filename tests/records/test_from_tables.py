"""What metrics read of a run: built whole, of one type in every mechanism."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.cluster.config import AUGUST, ClusterConfig
from blis_jax.core.outcome import Outcome
from blis_jax.engine.loop import raw_of
from blis_jax.records.from_tables import run_record
from blis_jax.records.observation import Observation
from blis_jax.records.stays import Timeouts
from blis_jax.tables.journeys import Journey, Reservation
from blis_jax.workload.table import with_timeouts
from tests.engine.phases.made import PROMPTS, Made
from tests.support.scenes import table_of, workload_of

POOLS = {"revision": AUGUST, "prefill_instances": 1, "decode_instances": 1}
HELD = {name for name, value in vars(Observation).items() if isinstance(value, cached_property)}


def seen(timeout_us: int = 0, **settings: Any) -> Observation:
    """A run that has not begun."""
    made = Made(ClusterConfig(num_instances=2, **settings))
    ctx, table = made.ctx, table_of(workload_of(PROMPTS))
    if timeout_us:
        table = with_timeouts(table, np.full(len(PROMPTS), timeout_us))
    raw = raw_of(ctx.mechanism, made.state, jnp.int32(0))
    raw, params = jax.tree.map(np.asarray, (raw, ctx.params))
    return Observation(raw, table, params, ctx.shape, ctx.mechanism)


@pytest.mark.parametrize(
    ("settings", "parts"), [({"timeout_us": 9}, {Timeouts}), (POOLS, {Journey, Reservation})]
)
def test_every_field_is_of_one_type_and_set_when_it_is_built(
    settings: dict[str, Any], parts: set[type]
) -> None:
    with jax.enable_x64(True):
        plain, other = seen(), seen(**settings)
    assert {name: type(value) for name, value in vars(plain).items()} == {
        name: type(value) for name, value in vars(other).items()
    }
    assert not [*plain.own] and {type(part) for part in other.own} == parts
    built = set(vars(other))
    assert run_record(other).outcome == Outcome.ITERATIONS_EXHAUSTED
    assert set(vars(other)) - built <= HELD
