"""What an H100 would have to do in each scan step: the `lanes` form compiled for one, without one at hand.

python -m benchmarks.gpu                 the table in Markdown on stdout
python -m benchmarks.gpu --write         the same, and into docs/results/gpu.md between its markers
python -m benchmarks.gpu --text FOLDER   keeps the compiled text of every mechanism as well

Needs CUDA's libraries for compiling (`pip install "jax[cuda13]"`, 4.4 GB), but neither a GPU nor a driver.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental import topologies

from benchmarks.gpu.hlo_counts import Counts, count
from benchmarks.speed.worker import BASELINE, BEST, PRESSED
from blis_jax.cluster.config import ClusterConfig
from blis_jax.lazy import Module
from blis_jax.reports.render import table_lines
from blis_jax.runs.calls import Call, Group
from blis_jax.runs.many_runs import drawn_runs
from blis_jax.runs.options import Options
from blis_jax.runs.programs import compiled, rows_of
from blis_jax.runs.runs import Point
from papers.pages import ROOT, hand_over, refuse, table_parser

if TYPE_CHECKING:
    from blis_jax.workload import spec as specs
else:  # needs pydantic, which `measure` does without
    specs = Module("blis_jax.workload.spec")

TARGET = Path(__file__).with_name("h100_target.textproto")
PAGE = ROOT / "docs" / "results" / "gpu.md"
LANES = 4096
SLOTS = 192  # of an instance, as much as the baseline needs
PROJECTED_LANES = (256, 4096, 16_384, 65_536)
# name: (settings, options besides the form)
MECHANISMS: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "baseline": (BASELINE, {}),
    "baseline, 64-bit clock": (BASELINE, {"clock": "int64"}),
    "round-robin": (BASELINE | {"routing_policy": "round-robin"}, {}),
    "it08_opt": (BEST, {}),
    "block-level": (PRESSED, {"kv_model": "block-level"}),
}
# assumptions of the projection
# from the start of one small kernel to that of the next in a CUDA graph or stream
LAUNCH_S = 2.5e-6
BANDWIDTH = 3.35e12  # bytes/s of the memory
SCAN_STEPS = 3900  # of the slowest of 4,096 baseline runs


@dataclass(frozen=True)
class Compiled:
    """One mechanism compiled for `lanes` lanes."""

    name: str
    lanes: int
    counts: Counts
    output_bytes: int
    temporary_bytes: int

    def step_s(self, lanes: int) -> float:
        """Return the seconds of a scan step: each kernel takes its launch or its bytes, whichever is longer."""
        scale = lanes / self.lanes
        return sum(max(LAUNCH_S, size * scale / BANDWIDTH) for size in self.counts.kernel_bytes)

    def runs_per_s(self, lanes: int) -> float:
        """Return the runs per second on the device, if all lanes take as many scan steps as the slowest."""
        return lanes / (SCAN_STEPS * self.step_s(lanes))


def missing_libraries() -> str:
    """Say why nothing can be compiled for a GPU here; an empty text if it can."""
    names = ("jax_cuda13_plugin", "jax_cuda12_plugin")
    if any(importlib.util.find_spec(name) is not None for name in names):
        return ""
    return (
        "compiling for a GPU needs CUDA's libraries, which are not installed here; make an environment "
        'of its own and give pip install "jax[cuda13]" (4.4 GB), no GPU is needed'
    )


def compile_for_h100(name: str, lanes: int) -> Any:
    """Compile the program of a mechanism, draws included, for an H100 that need not be there."""
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    jax.config.update("jax_platforms", "cuda,cpu")
    settings, changes = MECHANISMS[name]
    config, spec = ClusterConfig(**settings), specs.load_builtin("mixed")
    options = Options(form="lanes", resolve_ties=False, num_slots=SLOTS, **changes)
    runs = drawn_runs([Point(config, spec)], [0], options)
    call = Call(Group(runs[0]), runs, 1)
    topology = topologies.get_topology_desc(
        platform="cuda", topology_name="1x1x1", topology="1x1x1", target_config=TARGET.read_text()
    )
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])

    def of_lanes(leaf: Any) -> jax.ShapeDtypeStruct:
        shape, dtype = (
            (lanes, *np.shape(leaf)),
            jax.dtypes.canonicalize_dtype(np.asarray(leaf).dtype),
        )
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    with jax.enable_x64(True):
        (arrays,) = call.given()
        steps = jax.ShapeDtypeStruct((), np.int32, sharding=sharding)
        function = compiled(rows_of, *call.statics)
        traced = function.jitted.trace(*jax.tree.map(of_lanes, arrays), steps, None)
        return traced.lower(lowering_platforms=("cuda",)).compile()


def measured(name: str, lanes: int, folder: Path | None) -> Compiled:
    """Compile a mechanism and read what was compiled."""
    program = compile_for_h100(name, lanes)
    text = program.as_text()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name.replace(', ', '-').replace(' ', '-')}.hlo.txt").write_text(text)
    memory = program.memory_analysis()
    return Compiled(
        name, lanes, count(text), memory.output_size_in_bytes, memory.temp_size_in_bytes
    )


def _kinds(counts: Counts) -> str:
    return ", ".join(f"{number} {kind}" for kind, number in counts.kinds.most_common())


def table(results: Sequence[Compiled]) -> str:
    """Write counts and projection as Markdown."""
    lanes = results[0].lanes
    made = (
        f"Made with `python -m benchmarks.gpu --write`: `lanes` form, {lanes:,} lanes, the mixed workload's 1,000 "
        "requests, 8 instances."
    )
    head = (
        "mechanism", "kernels a scan step", "of these", "in inner loops", "table copies",
        "KB a lane and scan step", "output KB a run", "temporary GB",
    )  # fmt: skip
    rows = (
        (
            program.name, counts.num_kernels, _kinds(counts), counts.inner_kernels,
            counts.num_table_copies, f"{counts.num_bytes / lanes / 1e3:.1f}",
            f"{program.output_bytes / lanes / 1e3:.1f}", f"{program.temporary_bytes / 1e9:.2f}",
        )
        for program in results
        for counts in (program.counts,)
    )  # fmt: skip
    rates = (
        (program.name, *(f"{program.runs_per_s(count):,.0f}" for count in PROJECTED_LANES))
        for program in results
        if not program.counts.inner_kernels  # how often inner loops turn is not in the text
    )
    projected = ("projected runs/s", *(f"{count:,} lanes" for count in PROJECTED_LANES))
    return "\n".join([made, "", *table_lines(head, rows), "", *table_lines(projected, rates)])


def main(words: Sequence[str] | None = None) -> int:
    """Compile the mechanisms and print the table."""
    parser = table_parser("benchmarks.gpu", __doc__, f"docs/results/{PAGE.name}")
    parser.add_argument("--mechanism", choices=MECHANISMS, action="append")
    parser.add_argument("--lanes", type=int, default=LANES)
    parser.add_argument("--text", type=Path, metavar="FOLDER", help="keep the compiled text")
    arguments = parser.parse_args(words)
    refusal = missing_libraries()
    if arguments.lanes < 1:
        refusal = f"--lanes: got {arguments.lanes}, allowed is 1 or more"
    if arguments.write and (arguments.mechanism or arguments.lanes != LANES):
        refusal = (
            "--write is for all mechanisms and lanes as they are; leave --mechanism and --lanes out"
        )
    if refusal:
        return refuse(refusal)
    names = arguments.mechanism or list(MECHANISMS)
    text = table([measured(name, arguments.lanes, arguments.text) for name in names])
    return hand_over(text, PAGE if arguments.write else None, "gpu")


if __name__ == "__main__":
    sys.exit(main())
