"""Replay of recorded scenarios in one process."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import progress
from blis_jax.backend import prepare_backend
from blis_jax.cluster.config import FIELDS, from_flags, unsupported
from blis_jax.cluster.instance_groups import has_cpu_tier
from blis_jax.commands import cli, cluster_settings
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import trace_flags
from blis_jax.commands.run import requests
from blis_jax.commands.run.flags import BESIDE_SCENARIO, NAME, RunOptions, make_parser
from blis_jax.commands.run.one_run import dashed, is_whole
from blis_jax.commands.run.requests import load_requests
from blis_jax.commands.run.workload import closed_loop_of, is_file_name, source_of
from blis_jax.errors import ConfigError, UnsupportedError, as_option, closest
from blis_jax.files import input_files
from blis_jax.files.atomic_write import refuse_existing
from blis_jax.metrics.kv import INERT, INERT_SENTENCE, cpu_tier, kv_document
from blis_jax.metrics.reference import cluster_json
from blis_jax.metrics.scalars import TOKEN_RATES
from blis_jax.results.blis_files import results_text, write_scenario
from blis_jax.workload.source import REVISED

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.records.record import RunRecord
    from blis_jax.workload.table import RequestTable, WorkloadNames


@dataclass(frozen=True)
class Scenario:
    """A recorded run of BLIS to be repeated: from its configuration (February), or its command line (August)."""

    name: str
    document: Mapping[str, Any]  # the whole file
    folder: Path  # of the recording, to which paths of a command line belong
    workload: Path | None  # None: recorded without requests

    @property
    def flags(self) -> dict[str, Any]:
        """Return the recorded configuration, by BLIS's flag names."""
        return dict(self.document.get("config", {}))

    @property
    def is_of_august(self) -> bool:
        """Return whether the document is of August's revision, which describes a run by its command line."""
        return _is_of_august(self.document)

    @cached_property
    def options(self) -> dict[str, Any]:
        """Return the recorded command line as options of `run`."""
        words = list(self.document["cli_args"])
        recorded = make_parser().given(["--profile", REVISED, *words[words[0] == "run" :]])
        for name in ("workload_spec", "policy_config"):
            if name in recorded and is_file_name(recorded[name]):
                recorded[name] = str(self.folder / recorded[name])
        return {
            name: value
            for name, value in recorded.items()
            if name not in BESIDE_SCENARIO - _CHOICES
        }

    @property
    def seed(self) -> int:
        """Return the recorded seed, from which random policies draw; BLIS's default if none is recorded."""
        seed = self.options.get("seed") if self.is_of_august else self.document.get("seed")
        return seed if isinstance(seed, int) else trace_flags.DEFAULT_SEED


def replay(options: RunOptions, notes: Notes) -> int:
    """Repeat the recorded runs; return the exit code."""
    for name in options.named:
        if name not in BESIDE_SCENARIO:
            raise ConfigError(
                f"{as_option(name)} cannot be given with --scenario: "
                "a scenario brings its own cluster and requests; leave it out"
            )
    folder = None if options.results_path is None else Path(options.results_path)
    workloads = None if options.workloads_dir is None else Path(options.workloads_dir)
    scenarios = [_read_scenario(Path(path), workloads) for path in options.scenario]
    _check_names(scenarios, has_results=folder is not None)
    if folder is not None:
        cli.check_writable(folder, is_folder=True)
        for scenario in scenarios:
            for ending in (".npz", ".json"):
                refuse_existing(
                    {"--results-path": folder / f"{scenario.name}{ending}"}, options.overwrite
                )
    prepare_backend(use_cache=not options.no_cache)
    configs = [_config_of(scenario, options) for scenario in scenarios]
    tables = _load_workloads(scenarios, configs)

    work = progress.begin("replaying", len(scenarios), "scenarios")
    num_skipped = 0
    for index, (scenario, config) in enumerate(zip(scenarios, configs, strict=True)):
        work.show(index, scenario.name)
        result: RunRecord | str
        if isinstance(config, str):
            result = config
        else:
            record = _made_again(scenario, config, tables, options)
            result = record if is_whole(record) else record.outcome.sentence
        work.clear()
        if isinstance(result, str) or isinstance(config, str):
            cli.say(NAME, f"skipped {scenario.name}: {result}")
            num_skipped += 1
            continue
        if folder is not None:
            _write(folder, scenario, config, result)
        _print_replayed(scenario, config, result, notes, is_only=len(scenarios) == 1)
    if num_skipped and len(scenarios) > 1:
        notes.warn(f"{num_skipped} of {len(scenarios)} scenarios skipped")
    return cli.EXIT_UNSUPPORTED if num_skipped else 0


def _made_again(
    scenario: Scenario,
    config: ClusterConfig,
    tables: Mapping[tuple[Path, int], tuple[RequestTable, WorkloadNames]],
    options: RunOptions,
) -> RunRecord:
    """Repeat one run; sessions of August send their next round when the last one completes."""
    if scenario.is_of_august and scenario.document.get("closed_loop"):
        workload = closed_loop_of(source_of(RunOptions.of(scenario.options)))
        if workload is not None:
            return requests.run_as_asked(config, workload, options, scenario.seed).record
    assert scenario.workload is not None
    table, names = tables[scenario.workload, config.block_size_in_tokens]
    if scenario.is_of_august:
        shares = cluster_settings.resolved(scenario.options).get("tenant_shares", {})
        config = cluster_settings.with_shares(config, shares, names.tenant_names)
    return requests.run_of_table(config, table, names, options, scenario.seed)


def _read_scenario(path: Path, workloads: Path | None) -> Scenario:
    document = input_files.read_json(path, "a scenario file")
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a scenario: its top level is not an object")
    of_august, line = _is_of_august(document), document.get("cli_args")
    are_words = isinstance(line, list) and line and all(isinstance(word, str) for word in line)
    if of_august and not are_words:
        raise ConfigError(
            f"{path}: 'cli_args' is {_brief(document['cli_args'])}, but must be a list of the command line's words"
        )
    for key, kind, words in (
        ("config", dict, "an object of the run's options"),
        ("workload", str, "the name of a workload file"),
    ):
        if of_august and key not in document:
            continue
        if not isinstance(document.get(key), kind):
            what = "missing" if key not in document else f"{_brief(document[key])}"
            raise ConfigError(f"{path}: {key!r} is {what}, but must be {words}")
    name = document.get("name", path.stem)
    for key, value in (("name", name), ("workload", document.get("workload", "none"))):
        if not isinstance(value, str) or not re.fullmatch(r"[\w+][\w.+-]*", value):
            raise ConfigError(
                f"{path}: {key!r} is {_brief(value)}, but must be a plain file name without ending"
            )
    folder = path.absolute().parent.parent
    if "workload" not in document:
        return Scenario(name, document, folder, None)
    workload = (workloads or folder / "workloads") / f"{document['workload']}.npz"
    if not workload.is_file():
        raise ConfigError(
            f"{workload}, the workload of {path}, does not exist; give --workloads-dir"
        )
    return Scenario(name, document, folder, workload)


def _is_of_august(document: Mapping[str, Any]) -> bool:
    """Return whether a recording is of August's revision: has `cli_args`, and `closed_loop` or no `config`."""
    return "cli_args" in document and ("closed_loop" in document or "config" not in document)


def _brief(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check_names(scenarios: Sequence[Scenario], *, has_results: bool) -> None:
    seen = set()
    for scenario in scenarios:
        if has_results and scenario.name in seen:
            raise ConfigError(
                f"two scenarios are named {scenario.name!r} and would write the same files; "
                "replay them one after the other"
            )
        seen.add(scenario.name)


def _config_of(scenario: Scenario, options: RunOptions) -> ClusterConfig | str:
    """Return the configuration of a scenario, or a sentence on what is not supported."""
    if scenario.is_of_august:
        return _config_of_august(scenario, options)

    flags = scenario.flags
    known = {name.replace("_", "-") for name in FIELDS} | _NOT_ABOUT_THE_CLUSTER
    for name in flags:
        if name not in known:
            hint = closest(name, sorted(known))
            raise ConfigError(f"scenario {scenario.name}: unknown option {name!r} in config{hint}")
    for name in _NEEDED:
        if name not in flags:
            raise ConfigError(f"scenario {scenario.name}: config lacks {name!r}; add it")
    try:
        reason = unsupported(flags)
        if reason is not None:
            return f"not supported yet: {reason}"
        config = from_flags(flags)
        return config.replace(
            **{name: options.named[name] for name in _CHOICES if name in options.named}
        )
    except ConfigError as error:
        raise type(error)(f"scenario {scenario.name}: {error}") from None
    except (TypeError, AttributeError):  # a list, say, where a word or a number belongs
        raise ConfigError(
            f"scenario {scenario.name}: a value in config has the wrong type; "
            "only coefficients are lists"
        ) from None


def _config_of_august(scenario: Scenario, options: RunOptions) -> ClusterConfig | str:
    """Return the configuration of a recorded command line, or a sentence on what is not supported."""
    try:
        choices = {name: options.named[name] for name in _CHOICES if name in options.named}
        settings = cluster_settings.resolved(scenario.options | choices)
        settings.pop("tenant_shares", None)  # the names of tenants come with the requests
        config = cluster_settings.cluster_config(settings)
        if scenario.workload is None:
            raise ConfigError("'workload' is missing, but must be the name of a workload file")
        return config
    except UnsupportedError as error:
        return str(error)
    except ConfigError as error:
        raise type(error)(f"scenario {scenario.name}: {error}") from None


_CHOICES = {"variant", "corrected"}
_NEEDED = ("num-instances", "total-kv-blocks", "alpha-coeffs", "beta-coeffs")
# Recorded options that say where the requests came from, or that `unsupported` looks at.
_NOT_ABOUT_THE_CLUSTER = {"seed", "roofline", "precise-kv-routing", "workload", "num-requests"}


def _load_workloads(
    scenarios: Sequence[Scenario], configs: Sequence[ClusterConfig | str]
) -> dict[tuple[Path, int], tuple[RequestTable, WorkloadNames]]:
    """Read every workload once, before the first run, so that a bad file stops the command before it has begun."""
    tables = {}
    for scenario, config in zip(scenarios, configs, strict=True):
        if isinstance(config, str) or scenario.workload is None:
            continue
        key = (scenario.workload, config.block_size_in_tokens)
        if key not in tables:
            tables[key] = load_requests(*key)
    return tables


def _write(folder: Path, scenario: Scenario, config: ClusterConfig, record: RunRecord) -> None:
    kept = ("tags", "note", "seed", "cli_args", "closed_loop", "workload", "workload_spec")
    details = {key: scenario.document[key] for key in kept if key in scenario.document}
    details["kv"] = kv_document(record, has_cpu_tier(config))
    with cli.writing(folder):
        write_scenario(folder, scenario.name, record, dashed(config) | scenario.flags, details)


def _print_replayed(
    scenario: Scenario, config: ClusterConfig, record: RunRecord, notes: Notes, *, is_only: bool
) -> None:
    """Print BLIS's blocks for a single scenario, or a line for each of several."""
    is_inert = cpu_tier(record, has_cpu_tier(config)) == INERT
    if is_only:
        if is_inert:
            notes.warn(INERT_SENTENCE)
        print(results_text(record), end="", flush=True)
        return
    block = cluster_json(record)
    figures = (
        "nothing completed"
        if block is None
        else (
            f"{block['completed_requests']} of {len(record.requests.arrival_us)} completed, "
            f"TTFT P99 {block['ttft_p99_ms']:.3f} ms, {block['tokens_per_sec']:.1f} "
            f"{TOKEN_RATES['tokens_per_sec']}"
        )
    )
    print(f"{scenario.name}: {figures}{', CPU tier inert' if is_inert else ''}", flush=True)
