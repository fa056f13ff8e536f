"""What measured closed loops say beyond the step law: factors of TTFT and ITL, by groups of deployments.

The logarithm of a factor is a sum over the groups that a run belongs to, from all runs of a model down to one
deployment, of a few numbers times features of the load. A group that was never measured adds nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from blis_jax.predict.scene import ClosedLoad, RealServer, Scene

FIGURES = ("ttft", "itl")
USUAL_LENGTH = 2048  # tokens
USUAL_CONCURRENCY = 16
Effects = Mapping[
    str, Mapping[str, Sequence[float]]
]  # by figure and group, one number for each feature


def features(load: ClosedLoad) -> tuple[float, ...]:
    """Level; requests at once, their square; prompt, output; requests times prompt: logarithms about usual values."""
    many = math.log2(load.concurrency / USUAL_CONCURRENCY) / 3
    prompt = math.log2(load.prompt / USUAL_LENGTH) / 2
    output = math.log2(load.output / USUAL_LENGTH) / 2
    return 1.0, many, many * many, prompt, output, many * prompt


def groups(server: RealServer) -> dict[str, str]:
    """The groups of a server, by level, from the widest to the narrowest; levels differ in what they leave open."""
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
    """The model's name without the precision of its weights."""
    for suffix in ("-fp8", "-w4a16"):
        model = model.removesuffix(suffix)
    return model


def factor(effects: Effects, figure: str, scene: Scene) -> float:
    """The factor of a figure, `ttft` or `itl`; 1 where nothing is known."""
    if not isinstance(scene.load, ClosedLoad):
        return 1.0
    known = effects.get(figure, {})
    values = features(scene.load)
    total = 0.0
    for level, group in groups(scene.server).items():
        numbers = known.get(f"{level}: {group}", ())
        total += sum(one * value for one, value in zip(numbers, values, strict=False))
    return math.exp(total)
