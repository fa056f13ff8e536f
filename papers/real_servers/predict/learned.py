"""What was learned from public measured runs: coefficients, what clients see, and how far predictions were off.

`served_fits.yaml` holds numbers that `blis-jax papers real_servers` fitted, and none of the data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import resources
from typing import Any

import yaml

from blis_jax.latency.deployment import GpuDescription, gpu_description
from papers.real_servers.predict.figures import ClientView
from papers.real_servers.predict.scene import ClosedLoad, RealServer, Scene
from papers.real_servers.predict.simulation import LoopView

COVERAGE = 0.90  # of an interval
OF_POOLS = "_pools"  # behind a kind of runs held out
REFERENCE_GPU = "H100"


# How far a row is from what a fit has seen. The first four are steps of one ladder.
LADDER = (
    "same",  # its deployment and load, or concurrencies between those
    "other_concurrency",  # up to twice as many as were measured of its layout, or down to half
    "other_layout",  # lengths, number of instances, sharing of experts, or workload; fewer or more at once than that
    "other_deployment",  # TP or copies of attention, or the first time on such GPUs
)
# The first stands alone; the others may come together.
FAR = ("other_software", "other_model", "other_hardware")
KINDS = (*LADDER, *FAR)
NEAR = 2.0  # times the requests at once; errors grow with the distance from what was measured
NEW_SERVERS = ("other_deployment", "other_model", "other_hardware")


@dataclass(frozen=True)
class SeenRuns:
    """The models, GPUs, software and layouts of the runs that a fit has seen."""

    models: frozenset[str] = frozenset()  # lower case
    gpus: frozenset[str] = frozenset()
    software: frozenset[str] = frozenset()  # models with a version behind them
    # requests at once: least, most
    layouts: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def of(cls, scenes: Iterable[Scene]) -> SeenRuns:
        """Collect the models, GPUs, software and layouts of these scenes."""
        scenes = list(scenes)
        layouts: dict[str, list[float]] = {}
        for scene in scenes:
            many = _at_once(scene)
            low, high = layouts.get(_shared_key(scene), [many, many])
            layouts[_shared_key(scene)] = [min(low, many), max(high, many)]
        servers = [scene.server for scene in scenes]
        return cls(
            frozenset(server.model.lower() for server in servers),
            frozenset(server.hardware for server in servers),
            frozenset(map(software_key, servers)),
            layouts,
        )

    def unseen(self, scene: Scene) -> tuple[str, ...]:
        """Return which of `KINDS` a scene is beside the seen runs; two kinds where both model and GPU are new."""
        server = scene.server
        far = (server.model.lower() not in self.models, server.hardware not in self.gpus)
        if any(far):
            return tuple(kind for kind, is_new in zip(FAR[1:], far, strict=True) if is_new)
        if software_key(server) not in self.software:
            return ("other_software",)
        if (span := self.layouts.get(_shared_key(scene))) is None:
            key = f"{deployment_key(server)}, "
            is_known = any(layout.startswith(key) for layout in self.layouts)
            return ("other_layout" if is_known else "other_deployment",)
        low, high = span
        if low <= (many := _at_once(scene)) <= high:
            return ("same",)
        return (
            "other_concurrency" if low <= many * NEAR and many <= high * NEAR else "other_layout",
        )


@dataclass(frozen=True)
class Learned:
    """The coefficients and errors of one model of step times, learned from the runs of one collection."""

    # coefficients of `served-physics` with the pace of the reference GPU, 1; None: `trained-physics` as published
    beta: tuple[float, ...] | None
    pace: Mapping[str, float]  # of other GPUs in the runs
    client: ClientView
    seen: SeenRuns
    # by figure and kind of row: half of an interval, in logarithms
    errors: Mapping[str, Mapping[str, float]]
    # closed loops alone
    view: LoopView = field(default_factory=LoopView)
    effects: Effects = field(default_factory=dict)

    def client_of(self, scene: Scene) -> ClientView:
        """Return the client of a scene, with the effects of its server's groups."""
        ttft, itl = (factor(self.effects, name, scene) for name in ("ttft", "itl"))
        return replace(self.client, ttft_factor=ttft, itl_factor=itl)

    def beta_on(self, hardware: str) -> tuple[float, ...] | None:
        """Return the step law's coefficients on this hardware; None if the fit has none.

        Raises:
            ConfigError: the GPU has no description.
        """
        if self.beta is None:
            return None
        pace = 1.0 if hardware == REFERENCE_GPU else self.pace.get(hardware)
        return (*self.beta[:-1], usual_pace(gpu_description(hardware)) if pace is None else pace)

    def interval(self, figure: str, value: float, scene: Scene) -> tuple[float, float]:
        """Return an interval that held the share `COVERAGE` of figures of runs held out; NaN where none is known.

        Args:
            figure: its name, such as `ttft_mean`.
            value: the prediction.
            scene: its kind, by what the fit has not seen, selects the runs held out that count.
        """
        halves = [self._half(figure, kind, scene) for kind in self.seen.unseen(scene)]
        half = math.hypot(*halves)
        return (value * math.exp(-half), value * math.exp(half)) if all(halves) else (math.nan,) * 2

    def _half(self, figure: str, kind: str, scene: Scene) -> float:
        """Half of an interval in logarithms, never narrower than for a nearer row; 0 where no error is known.

        Pools have their own, where the runs have pools.
        """
        known = self.errors.get(figure, {})

        def of(kind_of_row: str) -> float:
            usual = known.get(kind_of_row, 0.0)
            return known.get(f"{kind_of_row}{OF_POOLS}", usual) if scene.server.pools else usual

        if kind in FAR:
            return max(map(of, (kind, *LADDER))) if of(kind) else 0.0
        farther = [at for at in range(LADDER.index(kind), len(LADDER)) if of(LADDER[at])]
        return max(map(of, LADDER[: farther[0] + 1])) if farther else 0.0


def _at_once(scene: Scene) -> float:
    return float(scene.load.concurrency) if isinstance(scene.load, ClosedLoad) else 0.0


def deployment_key(server: RealServer) -> str:
    """Return a text with the server's model, GPU, TP, data parallelism, and whether it has pools."""
    pools = " pools" if server.pools else ""
    return f"{server.model.lower()} {server.hardware} tp{server.tp} dp{server.data_parallel}{pools}"


def software_key(server: RealServer) -> str:
    """Return a text that names the server's model and its serving software's version."""
    return f"{server.model.lower()} {server.variant.partition(' ')[0]}".strip()


def _shared_key(scene: Scene) -> str:
    """Make a text for a layout and how its experts are shared out, in whatever version."""
    return f"{layout_key(scene)} {scene.server.variant.partition(' ')[2]}".strip()


def layout_key(scene: Scene) -> str:
    """Make a text for a server and its load, but for the concurrency of a closed loop."""
    server, load = scene.server, scene.load
    lengths = f"{load.prompt}/{load.output}"
    if not isinstance(load, ClosedLoad):
        rates = " ".join(f"{stage.rate:g}" for stage in load.stages)
        return f"{deployment_key(server)}, {lengths} at {rates} requests/s"
    pools = " ".join(f"{pool.count}{pool.role[0].upper()}-TP{pool.tp}" for pool in server.pools)
    return f"{deployment_key(server)}, {pools or server.num_instances}, {lengths}"


def usual_pace(gpu: GpuDescription) -> float:
    """Return the pace of a GPU that was not measured: overheads shrink with bandwidth and arithmetic alike."""
    base = gpu_description(REFERENCE_GPU)
    ratio = base.bandwidth_tbs / gpu.bandwidth_tbs * base.peak_tflops / gpu.peak_tflops
    return math.sqrt(ratio)


@functools.cache
def learned(collection: str, model: str) -> Learned:
    """Load the fit that ships with the package for the runs of a collection; `model` is one of `MODELS`."""
    text = resources.files(__package__).joinpath("served_fits.yaml").read_text("utf-8")
    return from_document(yaml.safe_load(text)[collection][model])


def from_document(document: Mapping[str, Any]) -> Learned:
    """Read a fit from the document of its file."""
    return Learned(
        tuple(document["beta"]) if document["beta"] else None,
        document["pace"],
        ClientView(**document["client"]),
        SeenRuns(
            frozenset(document["models"]),
            frozenset(document["gpus"]),
            frozenset(document["software"]),
            document["layouts"],
        ),
        document["errors"],
        LoopView(**document.get("view", {})),
        document.get("effects", {}),
    )


def to_document(learned: Learned) -> dict[str, Any]:
    """Write a fit as the document of its file, numbers with five digits."""

    def short(value: Any) -> Any:
        """Return a value whose numbers have five digits."""
        if isinstance(value, Mapping):
            return {key: short(item) for key, item in sorted(value.items())}
        if isinstance(value, list | tuple):
            return [short(item) for item in value]
        if isinstance(value, bool):
            return value
        return float(f"{value:.5g}")

    client = learned.client
    return {
        "beta": [short(item) for item in learned.beta] if learned.beta else None,
        "pace": short(learned.pace),
        "client": {
            "first_token_ms": short(client.first_token_ms),
            "first_token_steps": short(client.first_token_steps),
            "token_share": short(client.token_share),
            "spread": short(client.spread),
        },
        "models": sorted(learned.seen.models),
        "gpus": sorted(learned.seen.gpus),
        "errors": short(learned.errors),
        "view": short(asdict(learned.view)),
        "effects": short(learned.effects),
        "software": sorted(learned.seen.software),
        "layouts": short(learned.seen.layouts),
    }


# --- factors by groups of deployments -------------------------------------------------------------
# What closed loops say beyond the step law. The logarithm of a factor of TTFT or ITL is a sum over the groups that a
# run belongs to, from all runs of a model down to one deployment, of a few numbers times features of the load. A group
# that was never measured adds nothing.

FIGURES = ("ttft", "itl")
USUAL_LENGTH = 2048  # tokens
USUAL_CONCURRENCY = 16
# by figure and group, one number for each feature
Effects = Mapping[str, Mapping[str, Sequence[float]]]


def features(load: ClosedLoad) -> tuple[float, ...]:
    """Return 1 and five numbers of the load as logarithms about usual values: requests at once, their square, prompt,
    output, requests × prompt.
    """
    many = math.log2(load.concurrency / USUAL_CONCURRENCY) / 3
    prompt = math.log2(load.prompt / USUAL_LENGTH) / 2
    output = math.log2(load.output / USUAL_LENGTH) / 2
    return 1.0, many, many * many, prompt, output, many * prompt


def groups(server: RealServer) -> dict[str, str]:
    """Return the groups of a server, by level, from the widest to the narrowest; levels differ in what
    they leave open.
    """
    model = server.model.lower()
    base = base_model(model)
    split = "pools" if server.pools else "equal"
    gpus = f"{server.hardware} tp{server.tp} dp{server.data_parallel}"
    return {
        "all": split,
        "gpu": f"{server.hardware} {split}",
        "model": f"{base} {split}",
        "precision": f"{model} {split}",
        "model on gpu": f"{model} {server.hardware} {split}",
        "variant": f"{model} {server.hardware} {server.variant}",
        "deployment": f"{model} {gpus} {split}",
    }


def base_model(model: str) -> str:
    """Return the model's name without the precision of its weights."""
    for suffix in ("-fp8", "-w4a16"):
        model = model.removesuffix(suffix)
    return model


def factor(effects: Effects, figure: str, scene: Scene) -> float:
    """Return the factor by which groups' effects multiply a figure, `ttft` or `itl`; 1 where no effect is known."""
    if not isinstance(scene.load, ClosedLoad):
        return 1.0
    known = effects.get(figure, {})
    values = features(scene.load)
    total = 0.0
    for level, group in groups(scene.server).items():
        numbers = known.get(f"{level}: {group}", ())
        total += sum(number * value for number, value in zip(numbers, values, strict=False))
    return math.exp(total)
