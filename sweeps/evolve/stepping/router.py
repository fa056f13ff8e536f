"""The router of a Go program that is translated statement by statement: its branches and loops as masks.

Every variable keeps its value where the present statement is not executed. A condition that is unknown while JAX traces
is a mask; a known one is decided at once, so a loop over three weights has three passes. Values have types of
`types`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from blis_jax.core.types import SLO_CLASSES
from blis_jax.errors import ConfigError
from blis_jax.lazy import jnp
from sweeps.evolve.running import INT, SNAPSHOT_FIELDS, GoRouter, over
from sweeps.evolve.stepping.basics import (
    NIL,
    BareShift,
    InstanceId,
    Length,
    SessionName,
    Snap,
    TableText,
    UnreadText,
    Value,
    alike,
    any_mask,
    both_masks,
    known,
    no,
    static_bool,
    value_of,
)
from sweeps.evolve.stepping.containers import ArrayOf, MapValue, SliceValue
from sweeps.evolve.stepping.library import Tokens
from sweeps.evolve.stepping.operations import less
from sweeps.evolve.stepping.places import (
    CopiedValue,
    Pointer,
    StructValue,
    chosen,
    copied,
    record_of,
)
from sweeps.evolve.stepping.types import FLOAT, WHOLE

MOST_PASSES = 64  # of a loop of which nothing but its condition says where it ends


@dataclass
class MaskFrame:
    """A branch, a loop, a pass of a loop, or a function, with the mask under which its statements are executed."""

    mask: Value
    name: str = ""
    results: list[Value] = field(default_factory=list)
    is_last: bool = False  # of a loop: whether the next pass is one too many
    is_bound: bool = False  # of a loop: whether it is known that there is none


class SteppingRouter(GoRouter):
    """A router's view of one decision, with the masks of the statements that its function executes."""

    def __init__(self, context: Value, state: Value) -> None:
        super().__init__(context, state)
        self.frames = [MaskFrame(True, "function")]
        self.is_left: Value = False  # whether it decides nothing
        is_all = isinstance(context.snapshots.is_active, np.ndarray)
        self.snapshots = SliceValue(
            [Snap(place) for place in range(self.size)], SNAPSHOT,
            count=self.size if is_all else Length(self.count, self.size), is_kept=True,
        )  # fmt: skip

    # --- where a statement happens ----------------------------------------------------------------

    @property
    def mask(self) -> Value:
        """Return the mask under which the present statement is executed."""
        return self.frames[-1].mask

    def test(self, condition: Value) -> Value:
        """Return a branch's condition; a Python bool if the condition is known while JAX traces."""
        return static_bool(condition)

    def when(self, condition: Value) -> bool:
        """Begin a branch; return False if it can never be executed."""
        mask = both_masks(self.mask, condition)
        if mask is False:
            return False
        self.frames.append(MaskFrame(mask))
        return True

    def begin(self, name: str) -> None:
        """Begin a block that `break` may leave."""
        self.frames.append(MaskFrame(self.mask, name))

    def end(self) -> None:
        """End the innermost branch or block."""
        self.frames.pop()

    def leave(self, name: str) -> None:
        """Stop executing up to the frame of this name, as `break`, `continue` and `return` do."""
        left = self.mask
        for frame in reversed(self.frames):
            frame.mask = both_masks(frame.mask, no(left)) if frame.mask is not left else False
            if frame.name == name:
                return

    def both(self, first: Value, second: Callable[[], Value]) -> Value:
        """Return `first && second()`; `second` is executed only where `first` holds."""
        if first is False or not self.when(first):
            return False
        try:
            return both_masks(first, static_bool(second()))
        finally:
            self.end()

    def either(self, first: Value, second: Callable[[], Value]) -> Value:
        """Return `first || second()`; `second` is executed only where `first` does not hold."""
        return no(self.both(no(first), lambda: no(second())))

    def leave_out(self, mask: Value) -> None:
        """Make no decision where the mask holds, which ends the run: Go's result there cannot be known."""
        self.is_left = any_mask(self.is_left, mask)

    # --- variables ----------------------------------------------------------------------------------

    def set(self, old: Value, new: Value) -> Value:
        """Return a variable's value after `old = new` under the present mask; a struct is changed in place."""
        if isinstance(old, CopiedValue):
            old.assign(copied(new), self.mask)
            return old
        if isinstance(new, (int, float, BareShift)) and not isinstance(new, bool):  # a constant
            new = alike(new, old)[0]
        return chosen(self.mask, copied(new), old)

    def put(self, owner: Value, key: Value, value: Value) -> None:
        """Assign `owner[key] = value`."""
        if isinstance(owner, Pointer):
            owner = record_of(owner)
        owner.put(key, copied(value), self.mask)

    def put_field(self, owner: Value, name: str, value: Value) -> None:
        """Assign `owner.name = value`."""
        if not isinstance(owner, (StructValue, Pointer)):
            raise ConfigError(
                "an assignment to this is not read: it would be kept between requests"
            )
        owner.put(name, copied(value), self.mask)

    def store(self, pointer: Value, value: Value) -> None:
        """Assign `*pointer = value`."""
        pointer.assign(copied(value), self.mask)

    def append(self, old: SliceValue, *values: Value) -> SliceValue:
        """Return `append(old, values...)`."""
        return old.appended([(copied(value), True) for value in values], self)

    def delete(self, owner: MapValue, key: Value) -> None:
        """Delete a key of a map under the present mask."""
        owner.delete(key, self.mask)

    def copy(self, to: SliceValue, source: SliceValue) -> None:
        """Copy elements from `source` to `to`, as many as both slices have."""
        copies = [copied(value) for value in source.values()]
        for place, value in enumerate(copies[: to.most]):
            there = both_masks(less(place, source.count), less(place, to.count))
            to.put(place, value, both_masks(self.mask, there))

    # --- loops ----------------------------------------------------------------------------------------

    def each(self, over: Value, name: str) -> Iterator[tuple[Value, Value]]:
        """Yield the key and element for each pass of `for … := range over`."""
        self.frames.append(MaskFrame(self.mask, name))
        for key, element, there in _passes(over):
            mask = both_masks(self.frames[-1].mask, there)
            if mask is not False:
                self.frames.append(MaskFrame(mask, f"{name} pass"))
                yield key, copied(element)
                self.frames.pop()
            elif there is False:
                break
        self.frames.pop()

    def loop(self, most: Value, name: str, is_sure: bool = True) -> Iterator[None]:
        """Run a loop of at most `most` passes, or `MOST_PASSES` if None; each pass asks `goes` whether it is executed.

        Unless `most` is given and sure, no decision is made where the loop has not ended after the last pass.
        """
        depth = len(self.frames)
        self.frames.append(MaskFrame(self.mask, name))
        try:
            for number in range((MOST_PASSES if most is None else most) + 1):
                self.frames[-1].is_last = number == (MOST_PASSES if most is None else most)
                self.frames[-1].is_bound = is_sure and most is not None
                yield
        finally:
            del self.frames[depth:]

    def goes(self, condition: Value) -> bool:
        """Begin a pass where the condition holds; return False if the pass can never be executed.

        Raises:
            ConfigError: nothing ends the loop.
        """
        loop = self.frames[-1]
        loop.mask = both_masks(loop.mask, static_bool(condition))
        if loop.is_last and not loop.is_bound:
            if loop.mask is True:
                raise ConfigError("this loop does not end")
            self.leave_out(loop.mask)
        if loop.mask is False or loop.is_last:
            return False
        self.frames.append(MaskFrame(loop.mask, f"{loop.name} pass"))
        return True

    def bound(self, start: Value, end: Value, step: int) -> int | None:
        """Return the most passes of a loop from `start` to `end`; None if the bounds are not known."""
        first, last = (_ends(side) for side in (start, end))
        if first is None or last is None:
            return None
        distance = last[1] - first[0] if step > 0 else first[1] - last[0]
        return max(0, distance // abs(step) + 2)

    # --- functions ------------------------------------------------------------------------------------

    def enter(self) -> None:
        """Begin a function."""
        self.frames.append(MaskFrame(self.mask, "function"))

    def returns(self, *values: Value) -> None:
        """Return the values from the present function, where the present statement is executed."""
        frame = next(frame for frame in reversed(self.frames) if frame.name == "function")
        new = [copied(value) for value in values]
        if self.mask is not False:
            frame.results = (
                [chosen(self.mask, *pair) for pair in zip(new, frame.results, strict=True)]
                if frame.results
                else new
            )
        self.leave("function")

    def result(self) -> Value:
        """End a function; return its results."""
        results = self.frames.pop().results
        return results[0] if len(results) == 1 else tuple(results)

    def call(self, owner: Value, name: str, *arguments: Value) -> Value:
        """Call a method."""
        if isinstance(owner, (StructValue, Pointer)):
            return owner.of.method(self, owner, name, arguments)
        if isinstance(owner, Snap) and name == "EffectiveLoad":
            return self.effective_load[owner.place]
        if owner is self and name in ("Intn", "Int31n", "Int63n", "Perm"):
            return self._drawn(name, arguments[0])
        if isinstance(owner, UnreadText):
            return owner
        raise ConfigError("this call is not read")

    def _drawn(self, name: str, limit: Value) -> Value:
        if name == "Perm":  # as Go makes it: each place by a number of its own
            made: list[Value] = []
            count, most = value_of(limit), _ends(limit)
            if most is None:
                raise ConfigError("a permutation of this many is not read")
            for place in range(most[1]):
                is_there = both_masks(self.mask, less(place, limit))
                other = self.intn(jnp.asarray(place + 1), is_there)
                made.append(INT(0))
                made[place] = SliceValue(made, WHOLE).get(other)
                made = [
                    chosen(both_masks(less(place, limit), other == at_), INT(place), cell)
                    for at_, cell in enumerate(made)
                ]
            return SliceValue(made, WHOLE, count=count if known(count) else limit)
        drawn = self.intn(value_of(limit), self.mask)
        return drawn if name == "Intn" else drawn.astype(np.asarray(value_of(limit)).dtype
                                                         if known(limit) else value_of(limit).dtype)  # fmt: skip

    # --- fields ---------------------------------------------------------------------------------------

    def get(self, owner: Value, name: str) -> Value:
        """Return `owner.name`."""
        if isinstance(owner, (StructValue, Pointer)):
            return owner.get(name)
        if isinstance(owner, Snap):
            if name == "ID":
                return InstanceId(owner.place, self)
            return getattr(self, SNAPSHOT_FIELDS[name])[owner.place]
        raise ConfigError(f"not read: .{name}")

    @property
    def request_class(self) -> TableText:
        """Return the request's class, as a text from a table."""
        return TableText(SLO_CLASSES, self.slo_class)

    @property
    def tokens(self) -> Tokens:
        """Return the prompt's tokens; only their number is known."""
        return Tokens(self.input_len)

    @property
    def session(self) -> SessionName:
        """Return the request's session; only whether there is one is known."""
        return SessionName(jnp.asarray(self.has_session, bool))

    def scorer(self, place: Value) -> Callable[..., MapValue]:
        """Return the scorer with this number, as a function to a map from instance to score."""
        return self._scored(self.scores[place])

    def scorers(self) -> SliceValue:
        """Return the router's scorers."""
        places = range(self.num_scorers)
        return SliceValue([self.scorer(place) for place in places], NIL, is_kept=True)

    def shares(self) -> SliceValue:
        """Return the weights of the router's scorers, as shares."""
        places = range(self.num_scorers)
        return SliceValue([self.weights[place] for place in places], FLOAT, is_kept=True)

    def named_scorer(self, name: str) -> Callable[..., MapValue]:
        """Return a scorer of BLIS by its Go name, as a function to a map from instance to score."""
        load, count = self.effective_load, self.there
        if name == "scoreKVUtilization":
            values = 1.0 - self.kv_utilization
        elif name == "scoreLoadBalance":
            values = over(1.0, 1.0 + load.astype(np.float64))
        else:
            least = jnp.min(jnp.where(count, load, jnp.iinfo(INT).max))
            most = jnp.maximum(jnp.max(jnp.where(count, load, 0)), 0)
            share = over((most - load).astype(np.float64), (most - least).astype(np.float64))
            values = jnp.where(most == least, 1.0, share)
        return self._scored(values)

    def _scored(self, values: Value) -> Callable[..., MapValue]:
        def scores(*arguments: Value) -> MapValue:
            if arguments[-1] is not self.snapshots:
                raise ConfigError("a scorer is asked about all snapshots alone")
            return self._by_instance(values)

        return scores

    def _by_instance(self, values: Value) -> MapValue:
        made = MapValue(FLOAT)
        for snap in self.snapshots.cells:
            made.put(InstanceId(snap.place, self), values[snap.place],
                     less(snap.place, self.snapshots.count))  # fmt: skip
        return made

    def chosen_instance(self, target: Value) -> tuple[Value, Value]:
        """Return the decision for an instance's ID, -1 where none is made; and the router's next state."""
        if not isinstance(target, InstanceId):
            raise ConfigError("a decision that names no instance is not read")
        chosen, state = self.decided(jnp.asarray(target.place, INT))
        return chosen if self.is_left is False else jnp.where(self.is_left, -1, chosen), state


class _SnapshotType:
    """The type of snapshots; its zero is no instance."""

    def zero(self) -> Snap:
        return Snap(-1)


SNAPSHOT = _SnapshotType()


def _ends(value: Value) -> tuple[int, int] | None:
    """Return the least and the greatest value that a number may have; None where they are not known."""
    if isinstance(value, Length):
        return value.least, value.most
    return (int(value), int(value)) if known(value) else None


def _passes(over: Value) -> Iterator[tuple[Value, Value, Value]]:
    """Yield for each pass the key, the element, and a mask for whether the pass is executed."""
    if isinstance(over, SliceValue):
        for place in range(over.most):  # what a pass before it has changed is read as changed
            yield INT(place), over.cells[over.start + place], less(place, over.count)
    elif isinstance(over, ArrayOf):
        for place in range(len(over.cells)):
            yield INT(place), over.cells[place], True
    elif isinstance(over, MapValue):
        yield from [(entry.key, entry.value, entry.is_there) for entry in over.entries]
    else:
        ends = _ends(over)
        if ends is None:
            raise ConfigError("a loop up to this bound is not read")
        for place in range(ends[1]):
            yield INT(place), NIL, less(place, over)
