"""Classes of arrays are known to JAX from the first instance on."""

from __future__ import annotations

import contextlib
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from blis_jax.core import types


def test_two_threads_may_make_the_first_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when two mechanisms compile side by side; JAX refuses to take a class twice."""
    meeting = threading.Barrier(2)
    register = jax.tree_util.register_dataclass

    def slowly(cls: type) -> type:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(timeout=0.5)  # for the other thread, if nothing keeps it away
        return register(cls)

    monkeypatch.delitem(sys.modules, "jax")

    @types.pytree
    class Late:
        """Declared before JAX has started."""

        value: int

    monkeypatch.setitem(sys.modules, "jax", jax)
    monkeypatch.setattr(jax.tree_util, "register_dataclass", slowly)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(Late, [1, 2]))
    assert [jax.tree.leaves(one) for one in made] == [[1], [2]]
