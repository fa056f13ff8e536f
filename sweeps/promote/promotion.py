"""Define a promotion (strategy, baseline, target), and the data that its stages pass to each other.

A stage is a pure function from a `Promotion` and the files of earlier stages to files: texts by path, relative
to the output folder. Only `sweeps.promote.store` writes them.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blis_jax.errors import ConfigError
from blis_jax.files import input_files, python_files
from blis_jax.files.atomic_write import fingerprint
from blis_jax.policies import registry
from sweeps.promote import DEFAULT_TARGET
from sweeps.strategies.arms import Arm, arm_of, key_of
from sweeps.strategies.file import FOLDER, Strategy
from sweeps.strategies.space import space_of

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

Files = Mapping[str, str]  # path below the output folder, with "/" -> text that ends with a newline
Severity = Literal["CRITICAL", "IMPORTANT", "SUGGESTION"]
Evidence = Literal["simulated", "measured"]
CRITICAL: Severity = "CRITICAL"
IMPORTANT: Severity = "IMPORTANT"
SUGGESTION: Severity = "SUGGESTION"
SEVERITIES = (CRITICAL, IMPORTANT, SUGGESTION)
UNSET = "SET-ME"  # stands for a tag that a person has to give
UNSET_IMAGE = f"registry/repository:{UNSET}"
ENGINE_PRIORITY = "engine-priority"  # the plugin that writes the request field of vLLM
PLUGIN_KINDS = {
    "scorer": "scorer",
    "routing": "scorer",
    "admission": "admitter",
    "order": "ordering",
    "request": "other",
}
USUAL_BASELINE, USUAL_WORKLOAD = "iter00_baseline", "mixed"
BASELINE, CONTROL, TREATMENT = "baseline", "control", "treatment"
ARMS = (BASELINE, CONTROL, TREATMENT)
# what `evolve read` writes into a policy that goes instance by instance
BY_STEPS = "SteppingRouter"


def file_named(files: Files, name: str) -> str | None:
    """Return the first path that ends with `name`, such as `arms/baseline/FILE`; None if no path does."""
    return next((path for path in sorted(files) if f"/{path}".endswith(f"/{name}")), None)


@dataclass(frozen=True)
class Promotion:
    """Hold a strategy, its baseline, and the version of llm-d for which the change is written."""

    given: str  # STRATEGY[@POINT], as on the command line
    arm: Arm
    baseline: Arm
    target: str  # NAME@VERSION, a folder of sweeps/promote/targets
    image: str = UNSET_IMAGE  # of the endpoint picker with the promotion's plugins

    @property
    def name(self) -> str:
        """Return the strategy's name; the arm's name if the arm is bare settings."""
        return self.arm.name if self.arm.strategy is None else self.arm.strategy.name

    @property
    def changes_nothing(self) -> bool:
        """Return whether strategy and baseline have the same settings."""
        return key_of(self.arm.config) == key_of(self.baseline.config)

    @property
    def workload_name(self) -> str:
        """Return the name of the strategy's workload."""
        strategy = self.arm.strategy
        if strategy is None:
            return USUAL_WORKLOAD
        return strategy.workload if isinstance(strategy.workload, str) else f"of {strategy.name}"


@dataclass(frozen=True)
class GeneratedPlugin:
    """Describe a plugin that the compiler generated for the promotion."""

    kind: str  # scorer, admission, routing, order or request
    simulated_name: str
    type_name: str  # in the target's configuration
    package_path: str  # below the target's module
    parameters: Mapping[str, float]  # as the strategy has them
    signals: tuple[str, ...]  # of the simulator, such as snapshots.queue_depth
    # Alpha, Beta, Stable, or another word where the version of the target has no levels
    stability: str

    @property
    def level(self) -> str:
        """Return Alpha, Beta or Stable; Beta if the target's version has no stability levels."""
        return self.stability if self.stability in ("Alpha", "Stable") else "Beta"


def plugin_for(
    generated: Sequence[GeneratedPlugin], kind: str, name: str
) -> GeneratedPlugin | None:
    """Return the generated plugin of a policy; None if there is none. Of `FILE:NAME`, only NAME counts."""
    for plugin in generated:
        if plugin.kind == kind and _plain(plugin.simulated_name) == _plain(name):
            return plugin
    return None


def order_plugin(
    generated: Sequence[GeneratedPlugin], scheduler: str, priority: str
) -> GeneratedPlugin | None:
    """Return the generated order of a scheduler or a priority policy; order names are `PRIORITY+SCHEDULER`."""
    names = {_plain(scheduler), _plain(priority)}
    for plugin in generated:
        if plugin.kind == "order" and names & set(map(_plain, plugin.simulated_name.split("+"))):
            return plugin
    return None


def parameters_of(plugin: GeneratedPlugin, numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return the plugin's parameters, with a policy's numbers where their names match (ignoring case, - and _)."""
    known = {_plain(name): float(value) for name, value in numbers.items()}
    return {name: known.get(_plain(name), value) for name, value in plugin.parameters.items()}


def _plain(name: str) -> str:
    return name.rpartition(":")[2].replace("_", "").replace("-", "").lower()


def reads_class(generated: Sequence[GeneratedPlugin]) -> bool:
    """Return whether a plugin reads a request's SLO class, which the target derives from the priority."""
    return any(
        signal.rpartition(".")[2] == "slo_class"
        for plugin in generated
        for signal in plugin.signals
    )


def plugin_rows(generated: Sequence[GeneratedPlugin]) -> list[dict[str, Any]]:
    """Return the plugins as rows of `generated-plugins.yaml`."""
    return [
        {
            "type": plugin.type_name,
            "kind": PLUGIN_KINDS[plugin.kind],
            "stability": plugin.level,
            "simulated": plugin.simulated_name.rpartition("/")[2],
            "package": plugin.package_path,
            "parameters": dict(plugin.parameters),
        }
        for plugin in generated
    ]


@dataclass(frozen=True)
class Finding:
    """Hold one fault that a rule checker found in a file; a CRITICAL one keeps a gate closed."""

    severity: Severity
    rule: str  # kebab-case, the same in every run
    path: str  # of the file, relative to the output folder
    message: str  # one sentence: what is there, what is allowed, the likely fix


def gravest_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings without duplicates, sorted by severity, rule, path and message."""
    return sorted(
        set(findings),
        key=lambda finding: (
            SEVERITIES.index(finding.severity), finding.rule, finding.path, finding.message,
        ),
    )  # fmt: skip


def counted(findings: Mapping[str, int]) -> str:
    """Return the counts by severity as text, such as `1 CRITICAL, 0 IMPORTANT`."""
    return ", ".join(f"{findings.get(name, 0)} {name}" for name in SEVERITIES)


def count_of(findings: Sequence[Finding]) -> dict[str, int]:
    """Return the number of findings of each severity."""
    counts = Counter(finding.severity for finding in findings)
    return {name: counts[name] for name in SEVERITIES}


class NotMappedError(ConfigError):
    """A setting, signal or primitive that the target cannot express; the sentence ends with a proposal."""


def make_promotion(
    strategy: str,
    baseline: str | None,
    target: str,
    image: str | None = None,
    *,
    may_be_its_baseline: bool = False,
) -> Promotion:
    """Build a promotion from the words of the command line; the default baseline is that of the strategy's file.

    Raises:
        ConfigError: target or image is malformed, or the strategy equals its baseline without `may_be_its_baseline`.
        NotMappedError: the router was read from Go statement by statement, so it fits one number of endpoints only.
    """
    arm = arm_of(strategy)
    _refuse_steps(arm.config)
    usual = arm.strategy.baseline if arm.strategy is not None else USUAL_BASELINE
    other = arm_of(baseline or usual)
    if target.count("@") != 1 or not all(target.split("@")):
        raise ConfigError(f"--target: {target!r} is not NAME@VERSION, such as {DEFAULT_TARGET}")
    if image is not None and not re.fullmatch(r"[\w.:-]+(/[\w.-]+)+:[\w.-]+", image):
        raise ConfigError(
            f"--image: {image!r} is not REGISTRY/REPOSITORY:TAG, such as quay.io/example/endpoint-picker:promoted"
        )
    promotion = Promotion(strategy, arm, other, target, image or UNSET_IMAGE)
    if promotion.changes_nothing and not may_be_its_baseline:
        another = "llm-d-default" if other.name == "vllm" else "vllm"
        raise ConfigError(
            f"{strategy} would be compared with itself, as its baseline is {other.name}, and there is nothing to "
            f"promote; give --baseline another arm, such as {another}, or promote a change of it, such as "
            f"'mine={other.name}:max_num_seqs=64'"
        )
    return promotion


def _refuse_steps(config: ClusterConfig) -> None:
    """Refuse early a router that was read from Go statement by statement."""
    if not python_files.is_file(config.routing_policy):
        return
    decide = registry.find("routing", config.routing_policy).decide
    if BY_STEPS in getattr(getattr(decide, "__code__", None), "co_names", ()):
        raise NotMappedError(
            f"router {config.routing_policy}: it was read from Go statement by statement, so it goes from instance to "
            "instance and is another computation for each number of them, and a plugin works for any number of "
            "endpoints; score every snapshot by itself and take the best, without sorts, pointers, closures that "
            "change what is outside and maps by other keys than snap.ID, and read it again"
        )


def identity_of(promotion: Promotion) -> dict[str, Any]:
    """Return the values that identify a promotion, by their name in words; its files depend on these alone."""
    return {
        "strategy": promotion.given,
        "baseline": promotion.baseline.name,
        "target": promotion.target,
        "content of the strategy": key_of(promotion.arm.config),
        "content of the baseline": key_of(promotion.baseline.config),
        "content of policy files": fingerprint(policy_files(promotion)),
    }


def policy_files(promotion: Promotion) -> dict[str, str]:
    """Return the texts of the policy files that strategy and baseline name, by the file's name."""
    files = {}
    for arm in (promotion.arm, promotion.baseline):
        for field in dataclasses.fields(arm.config):
            value = getattr(arm.config, field.name)
            for path in re.findall(r"([^\s,]+\.py):", value) if isinstance(value, str) else ():
                files[Path(path).name] = input_files.read_text(Path(path), "a policy")
    return files


def place_of(promotion: Promotion, setting: str) -> str:
    """Return file and line of a setting in the strategy's file; the strategy's name if the file does not have it."""
    strategy = promotion.arm.strategy
    if strategy is None:
        return f"strategy {promotion.given}"
    text = _text(strategy)
    names = [
        dimension.name for dimension in space_of(strategy).dimensions if dimension.target == setting
    ]
    for word in (setting, *names, setting.rpartition(".")[2]):
        match = re.search(rf"(?m)^.*\b{re.escape(word)}\b\s*[:,}}].*$", text)
        if match:
            return f"{strategy.source}, line {text[: match.start()].count(chr(10)) + 1}"
    return f"strategy {promotion.given}"


def not_mapped(promotion: Promotion, setting: str, problem: str, proposal: str) -> NotMappedError:
    """Return the error about a setting that the target cannot express."""
    place = place_of(promotion, setting)
    return NotMappedError(f"{setting} ({place}): {problem}; proposal: {proposal}")


def _text(strategy: Strategy) -> str:
    if strategy.folder is not None:
        return (strategy.folder / strategy.source).read_text(encoding="utf-8")
    file = resources.files("sweeps") / FOLDER / strategy.source
    return file.read_text(encoding="utf-8") if file.is_file() else ""


class GateClosedError(ConfigError):
    """A gate is closed to a stage, or refuses a decision; commands end with exit code 3."""
