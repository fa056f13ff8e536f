"""Take the difference between two arms apart as options of `sweeps.ablate` say: its runs and its files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax.commands.options.outputs import outputs_of
from blis_jax.errors import ConfigError
from blis_jax.progress import phase
from sweeps.compare.ablation.components import components_of, config_at, on
from sweeps.compare.ablation.document import Ablation, Combination, default_metrics, to_document
from sweeps.compare.ablation.factorial import masks_of
from sweeps.compare.ablation.study import findings_of, write_reports
from sweeps.compare.result import setting_of, write_result
from sweeps.runs.experiment import Experiment
from sweeps.runs.options import FOLDER, NUM_SEEDS
from sweeps.runs.requests import requests_of, workload_of_arms
from sweeps.strategies.arms import arm_of, as_served, on_instances

if TYPE_CHECKING:
    from blis_jax.files.chain import Journal
    from sweeps.ablate import AblateOptions
    from sweeps.compare.ablation.components import Component
    from sweeps.compare.document import ComparedSetting
    from sweeps.strategies.arms import Arm


def take_apart(options: AblateOptions, arm_text: str, base_text: str, command: str) -> int:
    """Run combinations of components, and write and print what each contributes; return the exit code."""
    began = time.monotonic()
    arms = (on_instances(arm_of(text), options.instances) for text in (arm_text, base_text))
    arm, base = as_served(arms, options.trace is not None)
    components = components_of(base.config, arm.config, options.components)
    paths = outputs_of(options, f"{FOLDER}/ablate.json", beside=(".jsonl",))
    if options.block_s is not None:
        raise ConfigError("--block-s has no meaning here; --trace-windows gives runs to compare")
    masks = masks_of(options.design, len(components))
    configs = [base.config, arm.config]
    requests = requests_of(
        options, options.command, lambda: workload_of_arms(options, [arm, base]), configs, NUM_SEEDS
    )
    setting = setting_of(
        options, requests, [arm, base], lambda classes, _: default_metrics(classes)
    )
    experiment = Experiment(requests, setting.metrics, setting.targets)
    journal = experiment.journal(paths.beside(".jsonl"), "ablation")
    with journal.held(options.resume):
        combinations = _run(
            options.command, setting, experiment, journal, (base, arm), components, masks
        )

        ablation = Ablation(base, arm, components, options.design, combinations)

        with phase("judging contributions"):
            document = to_document(setting, ablation)

        def write_more() -> None:
            write_reports(document, ablation, experiment, paths, command)

        has_figures = any(one["num_pairs"] for one in document["contributions"])
        lacking = None if has_figures else "on no seed did two combinations finish"
        seconds = time.monotonic() - began
        return write_result(document, paths, options, findings_of, write_more, seconds, lacking)


def _run(
    command: str,
    setting: ComparedSetting,
    experiment: Experiment,
    journal: Journal,
    arms: tuple[Arm, Arm],
    components: Sequence[Component],
    masks: Sequence[int],
) -> tuple[Combination, ...]:
    """Every combination on every seed; one that is no configuration says why."""
    base, arm = (one.config for one in arms)
    findings = []
    classes, is_one = setting.classes, setting.is_one_trace
    with experiment.kept_runs(command, journal, len(masks), classes, is_one) as kept:
        for mask in masks:
            name = " + ".join(one.name for one in on(components, mask)) or arms[0].name
            try:
                config = config_at(base, arm, components, mask)
            except ConfigError as error:
                findings.append(Combination(mask, error=str(error)))
                continue
            findings.append(Combination(mask, kept.of(config, name)))
    return tuple(findings)
