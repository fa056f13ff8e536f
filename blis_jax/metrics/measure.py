"""How a sweep's runs are measured, as plain data: SLO targets and the window of arrivals."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from blis_jax.core.types import CLASS_NAMES
from blis_jax.errors import ConfigError, closest
from blis_jax.metrics.summaries import LIMITS, SloTargets, Target, Window
from blis_jax.records.record import RunRecord
from blis_jax.workload.source import RequestSource

COUNTED = "completions in the window"
# Ours, not published: on the mixed workload the baseline keeps them for about one critical request
# in five, nine standard ones in ten and all sheddable ones.
DEFAULT_TARGETS: Mapping[str, Mapping[str, float]] = {
    "critical": {"ttft_ms": 100.0},
    "standard": {"ttft_ms": 250.0},
    "sheddable": {"ttft_ms": 1000.0},
}


@dataclass(frozen=True)
class Measure:
    """The arrivals that are measured, and the limits by class, ms; summaries.py says which completions rates count."""

    targets: Mapping[str, Mapping[str, float]] = field(default_factory=lambda: DEFAULT_TARGETS)
    warm_up_s: float = 0.0  # arrivals left out at the beginning
    cool_down_s: float = 0.0  # and before the last arrival

    def check(self, spec: RequestSource) -> None:
        """Refuse a warm-up and cool-down as long as the workload's arrivals."""
        if not spec.aggregate_rate or spec.waits or not (spec.horizon or spec.num_requests):
            return
        expected_s = spec.horizon / 1e6 if spec.horizon else spec.num_requests / spec.aggregate_rate
        if self.warm_up_s + self.cool_down_s >= expected_s:
            raise ConfigError(
                f"a warm-up of {self.warm_up_s:g} s and a cool-down of {self.cool_down_s:g} s "
                f"leave nothing of about {expected_s:g} s of arrivals; give a shorter --window"
            )

    def slo_targets(self) -> SloTargets:
        """Return the targets as `SloTargets`; a request of a class without targets is good if it completes."""
        return SloTargets({name: Target(**limits) for name, limits in self.targets.items()})

    def texts(self) -> dict[str, str]:
        """Return targets and window as attributes of a Dataset."""
        targets = {name: dict(limits) for name, limits in self.targets.items()}
        return {"slo_targets": json.dumps(targets), "measure": json.dumps(self.window())}

    def window(self) -> dict[str, float | str]:
        """Return the spans left out, and, if there are any, a word on what rates count.

        Rates of earlier versions counted arrivals; the word differs, so files of those versions are not resumed.
        """
        spans: dict[str, float | str] = {
            "warm_up_s": self.warm_up_s,
            "cool_down_s": self.cool_down_s,
        }
        return spans | ({"rates": COUNTED} if any(spans.values()) else {})


def read_targets(texts: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the default targets, overridden by `texts`: `CLASS.LIMIT=MS`, or several of these with commas."""
    targets = {name: dict(limits) for name, limits in DEFAULT_TARGETS.items()}
    for text in target_texts(texts):
        slo_class, limit, value = split_target(text, CLASS_NAMES)
        of_class = targets.setdefault(slo_class, {})
        if value.strip() == "none":
            of_class.pop(limit, None)
        else:
            of_class[limit] = _milliseconds(text, value)
    return targets


def check_served(texts: Sequence[str], classes: Sequence[str]) -> None:
    """Refuse given targets of classes that no request has.

    Raises:
        ConfigError: the message names the classes that there are.
    """
    for text in target_texts(texts):
        slo_class = split_target(text, CLASS_NAMES)[0]
        if slo_class not in classes:
            raise ConfigError(
                f"--targets: no request is of class {slo_class!r} here; there are {', '.join(classes)}"
            )


def target_texts(texts: Sequence[str]) -> list[str]:
    """Split each text at commas; return all targets."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def split_target(
    text: str,
    classes: Sequence[str],
    form: str = "CLASS.LIMIT=MS",
    example: str = "critical.ttft_ms=80",
) -> tuple[str, str, str]:
    """Split a target into class, limit and value, as texts.

    Raises:
        ConfigError: the text does not have this form, or names none of the classes.
    """
    name, equals, value = text.partition("=")
    slo_class, dot, limit = name.strip().partition(".")
    if not (equals and dot) or limit not in LIMITS:
        raise ConfigError(
            f"--targets: {text!r} is not {form} with LIMIT one of {', '.join(LIMITS)}; "
            f"write for instance {example}{closest(limit, LIMITS)}"
        )
    if slo_class not in classes:
        raise ConfigError(
            f"--targets: SLO class {slo_class!r} is unknown; use one of {', '.join(classes)}"
            f"{closest(slo_class, classes)}"
        )
    return slo_class, limit, value


def _milliseconds(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number > 0):
        raise ConfigError(f"--targets: {text!r} needs a number of ms above 0, or none")
    return number


def read_window(text: str | None, spec: RequestSource) -> tuple[float, float]:
    """Read `WARM_UP,COOL_DOWN` in seconds; the workload's own if not given.

    Raises:
        ConfigError: the text is not two finite times of at least 0.
    """
    if text is None:
        return spec.measure.warm_up_s, spec.measure.cool_down_s
    try:
        warm_up_s, cool_down_s = (float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(
            f"--window: {text!r} is not WARM_UP,COOL_DOWN in seconds, such as 4,2"
        ) from None
    if not all(math.isfinite(span) and span >= 0 for span in (warm_up_s, cool_down_s)):
        raise ConfigError(f"--window: {text!r} has a span that is not finite and at least 0")
    return warm_up_s, cool_down_s


def window_of(measure: Measure, record: RunRecord) -> Window:
    """Return the measured window of one run; without a cool-down it reaches to the end."""
    from_us, until_us = round(measure.warm_up_s * 1e6), None
    if measure.cool_down_s:
        last_us = int(record.requests.arrival_us.max(initial=0))
        until_us = last_us - round(measure.cool_down_s * 1e6)
    return Window(from_us, until_us)
