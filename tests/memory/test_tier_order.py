"""The order of use of August's CPU tier, kept as links."""

import jax.numpy as jnp
import numpy as np

from blis_jax.memory.mirror import relinked
from blis_jax.tables.blocks import TierOrder

ENTRIES = 6


def test_links_tell_the_order_of_use() -> None:
    """Random uses of entries, first ones in order of their number, against a plain list."""
    end = ENTRIES
    before = np.full((1, ENTRIES + 2), end, np.int32)
    behind = before.copy()
    uses: list[int] = []
    random = np.random.default_rng(3)
    for turn in range(60):
        is_used = bool(random.random() < 0.9)
        entry = (
            len(uses) if len(uses) < ENTRIES and turn % 2 else int(random.integers(len(uses) or 1))
        )
        order = TierOrder(jnp.asarray(before), jnp.asarray(behind), jnp.zeros((1, 1), jnp.int32))
        links = relinked(
            order, jnp.int32(0), jnp.int32(entry), jnp.array(entry in uses), jnp.array(is_used)
        )
        for table, (index, value) in zip((before, behind), links, strict=True):
            table[0, np.asarray(index)] = np.asarray(value)
        if is_used:
            uses = [one for one in uses if one != entry] + [entry]
        seen, backwards = [], []
        at, back = int(behind[0, end]), int(before[0, end])
        while at != end:
            seen.append(at)
            backwards.append(back)
            at, back = int(behind[0, at]), int(before[0, back])
        assert seen == uses
        assert backwards == uses[::-1]
