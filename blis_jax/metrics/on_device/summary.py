"""What is kept of each run, computed in the compiled call where that is possible."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from blis_jax.metrics.on_device.compiled import Compute, Report
from blis_jax.metrics.on_device.lane import MeasureNumbers
from blis_jax.results.checks.cheap_invariants import CHEAP_NAMES
from blis_jax.results.records import RunRecord

T = TypeVar("T")
VIOLATIONS = (*CHEAP_NAMES, "monotone_clock")  # the last axis of a report's `violations`


class CompiledSummary(ABC, Generic[T]):
    """Makes the same of a report as of a whole record; the latter where a run had to come back whole.

    Both are called from several threads.
    """

    @property
    @abstractmethod
    def compute(self) -> Compute:
        """The figures in a compiled call; equal ones share a program."""

    @property
    @abstractmethod
    def numbers(self) -> MeasureNumbers:
        """Which requests are measured, and against what."""

    @abstractmethod
    def of_reports(self, report: Report, num_repairs: int | Sequence[int]) -> Any:
        """A sequence of what is kept of each row of a report of numpy arrays, whatever its outcome.

        `num_repairs` is one for all or one for each.
        """

    @abstractmethod
    def __call__(self, record: RunRecord) -> T:
        """The same of one record."""
