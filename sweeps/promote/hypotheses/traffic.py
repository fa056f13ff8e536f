"""Workloads of the simulator as the traffic of a test on a cluster."""

from __future__ import annotations

from blis_jax.files.strict_yaml import read_documents, read_yaml
from blis_jax.workload.spec import WorkloadSpec
from sweeps.promote.checks.documents import PRIORITY
from sweeps.promote.checks.kubernetes_rules import CLASS_LABEL
from sweeps.promote.configs.engine import class_shares
from sweeps.promote.configs.objects import objective_name
from sweeps.promote.hypotheses.document import OfferedTraffic
from sweeps.promote.hypotheses.lengths import lengths
from sweeps.promote.promotion import Files

_OBJECTS = "arms/treatment/kubernetes.yaml"
USUAL_REQUESTS = 1000


def traffic_of(spec: WorkloadSpec, name: str, rate: float | None, files: Files) -> OfferedTraffic:
    """The traffic of a workload.

    Args:
        spec: the workload.
        name: its name in the simulator.
        rate: requests per second in place of the workload's.
        files: of earlier stages; the objectives and headers of the classes are read from them.
    """
    shares = class_shares(spec)
    objectives, headers = _objectives(files), _headers(files)
    classes = tuple(
        {"name": slo_class, "share": round(share, 6), "objective": objective_name(slo_class)}
        | {"priority": objectives.get(slo_class, 0)}
        | ({"ttft_header_ms": headers[slo_class]} if slo_class in headers else {})
        for slo_class, share in shares.items()
    )
    has_classes = any(client.slo_class for client in spec.clients)
    prefixes = {
        client.prefix_group: client.prefix_length for client in spec.clients if client.prefix_group
    }
    turns = [client.multi_turn.max_rounds for client in spec.clients if client.multi_turn]
    return OfferedTraffic(
        name=name,
        rate=float(f"{rate or spec.aggregate_rate or 1.0:.6g}"),
        requests=spec.num_requests or USUAL_REQUESTS,
        prompt=lengths(spec, "input_distribution"),
        output=lengths(spec, "output_distribution"),
        prefix_tokens=max(prefixes.values(), default=0),
        prefix_groups=max(len(prefixes), 1),
        turns=max(turns, default=1),
        classes=classes if has_classes else (),
    )


def _path(files: Files, ending: str) -> str | None:
    return next((path for path in sorted(files) if path.endswith(ending)), None)


def _objectives(files: Files) -> dict[str, int]:
    """Priorities of the classes in the treatment arm."""
    path = _path(files, _OBJECTS)
    found = {}
    for one in read_documents(files[path], path) if path else ():
        label = one.get("metadata", {}).get("labels", {}).get(CLASS_LABEL)
        if label:
            found[label] = one["spec"]["priority"]
    return found


def _headers(files: Files) -> dict[str, int]:
    """The deadline headers of the classes, where the order by class has them."""
    path = _path(files, PRIORITY)
    classes = read_yaml(files[path], path)["classes"] if path else {}
    return {name: one["ttft_header_ms"] for name, one in classes.items()}
