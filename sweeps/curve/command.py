"""What the command does: arms of its texts, their curves, the files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.commands import cli
from blis_jax.commands.options import outputs
from blis_jax.commands.options.seed_options import seeds_of
from blis_jax.files.atomic_write import write_json
from blis_jax.files.chain import Journal
from blis_jax.reports import page
from blis_jax.reports.words import cluster_line
from sweeps.curve.document import findings_of, to_document
from sweeps.curve.measuring import Measuring, RateCurve
from sweeps.runs.axes import at_each_place
from sweeps.runs.measured import versions
from sweeps.runs.options import USUAL_ARM
from sweeps.runs.requests import check_count, check_seeds
from sweeps.runs.workloads import workload_content, workload_from
from sweeps.strategies.arms import arms_of, as_served

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blis_jax.commands.options.outputs import OutputPaths
    from sweeps.curve.__main__ import CurveOptions
    from sweeps.strategies.arms import Arm


def drawn(
    options: CurveOptions, paths: OutputPaths, usual_seeds: int, usual_requests: int, command: str
) -> int:
    """Measure and write the curves; return the exit code.

    Args:
        options: what is asked for.
        paths: where the results go.
        usual_seeds: how many seeds there are where the options do not say it.
        usual_requests: of a run for each instance, likewise.
        command: makes the results again.
    """
    given = arms_of(options.arms or (USUAL_ARM,), fit=options.coefficients_from)
    arms = at_each_place(given, options.grid)
    arms = as_served(arms, is_real=False)
    spec = workload_from(options.workload, "--workload")
    per_instance = options.num_requests or usual_requests
    seeds, stream = seeds_of(options, usual_seeds, options.stream), options.stream
    check_seeds(seeds, stream)
    check_count(seeds, 2, "for an interval", stream)
    setting: dict[str, Any] = {
        "workload": options.workload, "num_requests": per_instance, "seeds": list(seeds), "rng": stream,
        "confidence": options.confidence, "versions": versions(), "command": command,
        "cluster": cluster_line({arm.name: arm.config for arm in arms}),
    }  # fmt: skip
    about = {"num_requests": per_instance, "seeds": seeds, "stream": stream}
    content = {"workload": workload_content(spec), **about}
    journal = Journal(paths.beside(".jsonl"), "curve", content)
    with cli.resumable(options.command, journal.path), journal.held(options.resume):
        measuring = Measuring(spec, per_instance, seeds, stream, options.confidence, journal)
        curves = _curves(measuring, arms, options.rate)
        findings = findings_of(curves, setting, measuring.num_runs)
        document = to_document(curves, setting, findings)
        title = "Latency against throughput"
        files: outputs.Files = [
            (paths.result, lambda path: write_json(path, document)),
            (paths.figure, lambda path: outputs.draw(findings.pictures[0], path)),
            (paths.report, lambda path: page.write(findings, path, title, command, versions())),
        ]
        outputs.show(findings, lambda: outputs.write_files(files), options)
    return 0


def _curves(measuring: Measuring, arms: Sequence[Arm], rates: Sequence[float]) -> list[RateCurve]:
    curves = []
    with progress.phase("drawing curves", len(arms), "clusters") as work:
        for at, arm in enumerate(arms):

            def show(what: str, at: int = at, name: str = arm.name) -> None:
                work.show(at, f"{name}: {what}")

            curves.append(measuring.curve(arm, rates, show))
    return curves
