"""The rules about what reaches the target: a mechanism needs what its own profile and picker send."""

from __future__ import annotations

from collections.abc import Iterator

from blis_jax.errors import ConfigError
from blis_jax.files.strict_yaml import read_mapping
from sweeps.promote.checks.documents import CONFIG, FLAGS
from sweeps.promote.configs.picker import IN_FLIGHT_DETECTOR
from sweeps.promote.hypotheses.document import HYPOTHESES, HypothesisDocument, parse_hypotheses
from sweeps.promote.hypotheses.origins import needs_classes, writes_priority
from sweeps.promote.hypotheses.profiles import MOST_THREADS, overlays_of, pods_of, requests_of
from sweeps.promote.promotion import (
    BASELINE,
    ENGINE_PRIORITY,
    TREATMENT,
    Files,
    Finding,
    file_named,
)


def mechanism_findings(files: Files) -> Iterator[Finding]:
    """Yield hypotheses whose mechanism needs what their own profile or picker does not send."""
    path, flags = file_named(files, HYPOTHESES), file_named(files, f"arms/{TREATMENT}/{FLAGS}")
    if path is None or flags is None:
        return
    policy = read_mapping(files[flags], flags).get("scheduling-policy")
    if policy == "priority" and not writes_priority(files, TREATMENT):
        message = (
            "the treatment's engines order by the request field priority, and neither a harness nor the picker sends "
            f"it; put the plugin {ENGINE_PRIORITY} with its leads into the treatment's picker"
        )
        yield Finding("CRITICAL", "mechanism-not-sent", path, message)
    try:
        document = parse_hypotheses(files[path], path)
    except ConfigError:
        return  # told by another rule
    for one in document.hypotheses if needs_classes(files) else ():
        if one.track == "A" and one.profile.harness not in (None, "priority-mix"):
            message = (
                f"{one.id}: the treatment decides by the class of a request, and {one.profile.harness} sends none; use "
                "priority-mix"
            )
            yield Finding("CRITICAL", "mechanism-not-sent", path, message)
    yield from _queue_findings(files, document, path)


def _queue_findings(files: Files, document: HypothesisDocument, path: str) -> Iterator[Finding]:
    """Yield hypotheses under which the router's queue, if the treatment has one, can never form."""
    config = next(file for file in files if file.endswith(f"arms/{TREATMENT}/{CONFIG}"))
    picker = read_mapping(files[config], config)
    most = next(
        (
            (plugin.get("parameters") or {}).get("maxConcurrency", 100)
            for plugin in picker["plugins"]
            if plugin["type"] == IN_FLIGHT_DETECTOR
        ),
        None,
    )
    if most is None or "priorityBands" not in picker.get("flowControl", {}):
        return
    replicas = overlays_of(files).get(BASELINE, {}).get("decode", {}).get("replicas", 1)
    for hypothesis in document.hypotheses:
        clients = min(requests_of(hypothesis), MOST_THREADS * pods_of(hypothesis))
        is_meant = (
            hypothesis.track == "A"
            and hypothesis.profile.harness is not None
            and hypothesis.subject == TREATMENT
        )
        if is_meant and most * replicas >= clients:
            message = (
                f"{hypothesis.id}: the router holds requests back from {most} x {replicas} in flight on, and its "
                f"clients have {clients} at most, so its queue never forms; lower maxConcurrency or send more"
            )
            yield Finding("CRITICAL", "mechanism-not-sent", path, message)
