"""One run of `blis-jax run`: from its options to the output in BLIS's form, and its files."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from blis_jax import __version__, lazy
from blis_jax.backend import prepare_backend
from blis_jax.cluster import adapters
from blis_jax.cluster.config import FIELDS
from blis_jax.cluster.disaggregation import has_pools
from blis_jax.cluster.idle import idle_settings
from blis_jax.cluster.instance_groups import has_cpu_tier, instance_lines
from blis_jax.cluster.named_policies import draws
from blis_jax.cluster.revisions import served
from blis_jax.cluster.setting_values import is_later, plain_value
from blis_jax.commands import cli, cluster_settings
from blis_jax.commands.cli import Notes
from blis_jax.commands.options import trace_flags
from blis_jax.commands.options.outputs import with_ending
from blis_jax.commands.run import flags, scores
from blis_jax.commands.run.flags import NAME, RunOptions
from blis_jax.commands.run.workload import (
    Source,
    closed_loop_of,
    source_of,
    warn_of_idle_options,
)
from blis_jax.core.kinds import NONE, ROUTER
from blis_jax.core.outcome import Outcome
from blis_jax.errors import ConfigError, as_option
from blis_jax.files.atomic_write import refuse_existing, write_json
from blis_jax.latency.model_description import beyond_context
from blis_jax.latency.registry import FROM_SIZES
from blis_jax.metrics.figures import draft_figures
from blis_jax.metrics.kv import (
    ACTIVE,
    INERT,
    INERT_SENTENCE,
    cpu_tier,
    hits_without_use,
    kv_document,
    timelines,
)
from blis_jax.policies.numbers import DECLARED
from blis_jax.records.record import Status
from blis_jax.reports.perfetto import TracedRun, write_trace
from blis_jax.reports.words import cluster_line, last_gaps, survivors_line, unit_text
from blis_jax.results.blis_files import labels_of, results_document, results_text
from blis_jax.results.printed_text import decision_lines
from blis_jax.statistics.steady import growing_waits, steady_lines
from blis_jax.traces.rows import single_tokens

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.commands.run import requests
    from blis_jax.engine import mechanism
    from blis_jax.records.record import RunRecord
    from blis_jax.results import dataset
    from blis_jax.results.blis_files import Labels
    from blis_jax.results.scores import Verdicts
    from blis_jax.workload.reference.generate import DrawnWorkload
    from blis_jax.workload.spec_parts import WorkloadSpec
    from blis_jax.workload.table import RequestTable
else:  # they load JAX, for which no refusal waits
    requests = lazy.Module("blis_jax.commands.run.requests")
    mechanism = lazy.Module("blis_jax.engine.mechanism")
    dataset = lazy.Module("blis_jax.results.dataset")


def _cluster_of(options: RunOptions) -> tuple[ClusterConfig, Any]:
    """Return the cluster, and the shares of tenants by name."""
    if options.workloads_dir is not None:
        raise ConfigError("--workloads-dir has no meaning without --scenario; leave it out")
    if options.horizon is not None and options.horizon < 1:
        raise ConfigError(f"--horizon must be at least 1 µs, got {options.horizon}")
    settings = cluster_settings.resolved(options.named)
    if _stands_for_servers(options) and "coefficients_from" not in settings:
        settings["corrected"] = True
    shares = settings.pop("tenant_shares", {})
    return cluster_settings.cluster_config(settings), shares


def _stands_for_servers(options: RunOptions) -> bool:
    """Return whether the requests were recorded and no profile is asked for: the run is then without BLIS's defects."""
    return "trace" in options.named and not {"corrected", "variant"} & options.named.keys()


def _for_workload(options: RunOptions, config: ClusterConfig, spec: WorkloadSpec) -> ClusterConfig:
    """Return the cluster with the workload's horizon if the options give none; check the adapters of its clients."""
    if spec.horizon and options.horizon is None:
        config = config.replace(horizon=spec.horizon)
    adapters.check_clients(config, (*spec.clients, *getattr(spec, "cohorts", ())))
    return config


def simulate_one(options: RunOptions, notes: Notes, users: DrawnWorkload | None = None) -> int:
    """Make the run that the options of `run` describe, print its figures and write its files; return the exit code.

    `users` replaces the sessions that the options describe.
    """
    config, shares = _cluster_of(options)
    source = source_of(options)
    if source.spec is not None:
        config = _for_workload(options, config, source.spec)
    _check_outputs(options)
    prepare_backend(use_cache=not options.no_cache)

    trace = None
    if source.is_trace:
        trace = trace_flags.read(options, notes, options.seed_of_record, options.horizon)
    if _stands_for_servers(options):
        config = served(config, is_real=True)
    wanted_scores = scores.scores_of(options, source.spec, trace, options)
    flags.check(options, config, notes)
    workload, run = users or closed_loop_of(source), None
    if workload is None and trace is not None:
        workload = requests.closed_loop_of_rows(trace.rows)
    table, names = (
        requests.requests_of(source, config)
        if trace is None
        else trace_flags.to_table(trace, config)
    )
    config = cluster_settings.with_shares(config, shares, names.tenant_names)
    table = requests.placed_table(table, names, config, notes)
    _note_before(options, config, source, table, notes)
    started = time.perf_counter()
    if workload is None:
        said = notes if source.is_trace else None
        record = requests.run_of_table(config, table, names, options, source.policy_seed, said)
    else:
        run = requests.run_as_asked(config, workload, options, source.policy_seed)
        record, table, names = run.record, run.table, requests.names_of_run(run)
        notes.info(f"{table.num_rows} requests arrived, found in {run.num_passes} passes")
    notes.info(f"simulated in {time.perf_counter() - started:.3f} s")
    if not is_whole(record):
        cli.say(NAME, f"error: no result: {record.outcome.sentence}; {record.outcome.advice}")
        return cli.EXIT_UNSUPPORTED
    asked = (options, config, record, source, wanted_scores.limits)
    remark = requests.write_trace(*asked, (table, names), trace, run)
    if remark:
        notes.warn(remark)
    _note_inert_tier(config, record, notes)
    ids = run.request_ids() if run else None
    labels = labels_of(record, table, names, source.spec, ids, source.seed)
    if not _tell(options, config, record, labels, source, wanted_scores) and table.num_rows:
        notes.warn("no request completed before the run ended, so nothing is printed, as in BLIS")
        return 0
    _note_survivors(record, source, config.horizon, notes)
    for line in scores.absent_lines(record, wanted_scores):
        notes.warn(line)
    is_given = "total_kv_blocks" in options.named or bool(config.instances)
    _note_room(config, record, notes, is_given=is_given)
    if workload is None and (growing := growing_waits(record.requests)):
        notes.warn(growing)
    return 0


def _note_before(
    options: RunOptions, config: ClusterConfig, source: Source, table: RequestTable, notes: Notes
) -> None:
    """Print before the run what is simulated, and which options have no effect."""
    is_known = "hardware" in options.named or "alpha_coeffs" not in options.named
    is_known = is_known or config.latency_model in FROM_SIZES
    notes.say(cluster_line({"": config if is_known else config.replace(hardware="")}))
    _say_stream(source, table.num_rows, notes)
    lengths = np.asarray(table.input_len), np.asarray(table.output_len)
    too_long = beyond_context(config.model, config.model_config, *lengths)
    if too_long is not None and not config.is_august:  # August's revision drops and cuts them
        notes.warn(too_long)
    if (doubled := last_gaps(config, lengths[1])) is not None:
        notes.warn(doubled)
    if not table.num_rows:
        notes.warn("no request arrives before the horizon, so there are no figures")
    _warn_of_idle_options(options, config, source, notes)
    for line in instance_lines(config):
        notes.info(line)


MOST_LEFT = 0.02  # of the requests, which the end of a run may leave unfinished without a word


def _note_survivors(record: RunRecord, source: Source, horizon: int, notes: Notes) -> None:
    """Warn if the figures leave out requests or first tokens, or if outputs have a single token."""
    has_come = np.asarray(record.requests.arrival_us) < horizon
    arrived = int(np.count_nonzero(has_come))
    is_complete = record.requests.status == Status.COMPLETED
    completed = int(np.count_nonzero(is_complete))
    if completed < (1 - MOST_LEFT) * arrived:
        others = Counter(
            Status(status).name.lower().replace("_", " ")
            for status in record.requests.status[has_come & ~is_complete].tolist()
        )
        later = len(has_come) - arrived
        line = survivors_line(completed, arrived, others)
        notes.warn(f"{line}; {later:,} more come after the horizon" if later else line)
    made = int(record.requests.output_len[is_complete].sum())
    if source.is_trace and record.instances.total_output_tokens.sum() + completed == made:
        notes.warn(
            f"total_output_tokens and tokens_per_sec leave out the first token of each request, as BLIS's do; {made:,} "
            "output tokens were made"
        )
    if not source.is_trace and (single := single_tokens(record.requests.output_len)):
        notes.warn(single)


def _note_room(config: ClusterConfig, record: RunRecord, notes: Notes, *, is_given: bool) -> None:
    """Warn if prompts do not fit into the KV memory, or if more of BLIS's blocks are used than GPUs have room for."""
    lengths = record.requests.input_len[record.requests.status == Status.DROPPED]
    needed = -(-int(np.max(lengths, initial=0)) // config.block_size_in_tokens)
    if needed > config.total_kv_blocks:
        notes.warn(
            f"{len(lengths):,} requests are dropped, since their prompts need up to {needed:,} KV blocks and an "
            f"instance has {config.total_kv_blocks:,}: give it more (--total-kv-blocks) or leave them out"
        )
    used, fit = (
        int(np.max(record.instances.peak_kv_blocks_used)),
        config.total_kv_blocks // max(config.tp, 1),
    )
    if not is_given and config.preemption_mode != "recompute" and used > fit:
        notes.warn(
            f"up to {used:,} KV blocks of an instance were used, but its {config.tp} GPUs have room for about {fit:,}: "
            f"BLIS counts {config.tp} times as many; --total-kv-blocks {fit} gives what fits"
        )


def _tell(
    options: RunOptions,
    config: ClusterConfig,
    record: RunRecord,
    labels: Labels,
    source: Source,
    targets: scores.Scores,
) -> bool:
    """Write the result files and print the figures; return whether there are any to print."""
    verdicts = scores.verdicts_on(record, labels.request_id, targets)
    _write(options, config, record, labels, source, verdicts)
    num_asked = options.named.get("num_instances")
    text = results_text(record, labels, config, verdicts, num_asked)
    print(text, end="", flush=True)
    if options.is_shown:
        print("\n".join(decision_lines(record)), flush=True)
    for line in _source_lines(record):
        print(line, flush=True)
    if options.steady:
        print("\n".join(["", "Steady state", *steady_lines(record)]))
    return bool(text)


def _source_lines(record: RunRecord) -> list[str]:
    """Return lines with the figures of an event source and of drafted tokens."""
    lines = ["=== Event Source ==="] if record.figures else []
    for name, value in record.figures.items():
        declared = DECLARED[name]
        lines.append(f"{name}: {value:g}{unit_text(declared.unit)} ({declared.meaning})")
    drafts = draft_figures(record)
    lines += ["=== Drafted Tokens ==="] if drafts else []
    lines += [f"{name}: {value:g}" for name, value in drafts.items()]
    if drafts:
        lines.append("itl_… is of the gaps between steps that give tokens, tpot of each token")
    return lines


def _check_outputs(options: RunOptions) -> None:
    """Refuse paths that cannot be written, before anything is computed."""
    outputs = _outputs(options)
    if options.timeline is not None:
        with_ending(options.timeline, "--timeline", (".json",))
    for path in outputs.values():
        cli.check_writable(path, is_folder=path.suffix == ".zarr")
    trace_flags.check_output(options.trace_output, options.overwrite)
    refuse_existing(outputs, options.overwrite)
    if options.kv_timeline is not None:
        dataset.checked_suffix(Path(options.kv_timeline), dataset.TABLE_FORMATS)


def _outputs(options: RunOptions) -> dict[str, Path]:
    """Return the paths of the files asked for, by option."""
    files = {
        "--results-path": options.results_path, "--kv-timeline": options.kv_timeline,
        "--timeline": options.timeline, "--saturation-report": options.saturation_report,
    }  # fmt: skip
    return {name: Path(file) for name, file in files.items() if file is not None}


def _write(
    options: RunOptions,
    config: ClusterConfig,
    record: RunRecord,
    labels: Labels,
    source: Source,
    verdicts: Verdicts,
) -> None:
    """Write the files asked for; in the results file BLIS's own entries end before `kv`."""
    if options.results_path is not None:
        document = results_document(record, labels, verdicts)
        document["kv"] = kv_document(record, has_cpu_tier(config))
        if record.figures:
            document["figures"] = dict(record.figures)
        if drafts := draft_figures(record):
            document["drafts"] = {name: float(value) for name, value in drafts.items()}
        document["provenance"] = _provenance(options, config, source)
        with cli.writing(Path(options.results_path)):
            write_json(Path(options.results_path), document)
    if options.kv_timeline is not None:
        with cli.writing(Path(options.kv_timeline)):
            dataset.save_table(timelines(record, config.block_size_in_tokens), options.kv_timeline)
    if options.timeline is not None:
        path, traced = Path(options.timeline), TracedRun("", record, config.block_size_in_tokens)
        with cli.writing(path):
            write_trace([traced], path, {"workload": source.title, "seed": str(source.seed)})


def _note_inert_tier(config: ClusterConfig, record: RunRecord, notes: Notes) -> None:
    state = cpu_tier(record, has_cpu_tier(config))
    if state == INERT:
        notes.warn(INERT_SENTENCE)
    if state == ACTIVE and (words := hits_without_use(record)):
        notes.warn(words)


def _provenance(options: RunOptions, config: ClusterConfig, source: Source) -> dict[str, Any]:
    """Return the inputs of the results: version, profile, workload, seeds and configuration."""
    simple = source.distribution
    return {
        "program": f"blis_jax {__version__}",
        "profile": config.profile,
        "workload": source.title,
        **({"distribution": dataclasses.asdict(simple)} if simple else {}),
        **(trace_flags.provenance(options, options.seed_of_record) if source.is_trace else {}),
        "stream": source.stream,
        "seed": source.seed,
        **({"policy_seed": source.policy_seed} if draws(config) else {}),
        "config": dashed(config),
    }


def _say_stream(source: Source, num_requests: int, notes: Notes) -> None:
    text = f"{num_requests} requests drawn, stream {source.stream}"
    if source.stream == "jax":
        notes.warn(f"{text} (not BLIS's), seed {source.seed}")
    elif source.path is None:
        notes.info(f"{text}, seed {source.seed}")
    if source.is_default:
        notes.warn(
            "no workload is given, so the requests are those of BLIS's defaults: "
            f"{num_requests} at 1 per second"
        )


def _warn_of_idle_options(
    options: RunOptions, config: ClusterConfig, source: Source, notes: Notes
) -> None:
    """Warn of valid options that change nothing in this run."""
    named = options.named
    if named.get("routing_scorers") and not config.scorers():
        notes.warn(f"--routing-scorers has no effect on {config.routing_policy} routing")
    if named.get("decode_routing_scorers") and not config.decode_scorers():
        notes.warn(
            "--decode-routing-scorers has no effect: the decode pool's routing is neither weighted nor from a file"
        )
    for setting in (kind.decode_setting for kind in ROUTER):
        if setting in named and config.hand_over_policy == NONE and not has_pools(config):
            option = as_option(setting)
            notes.warn(f"{option} has no effect without --hand-over-policy")
    if named.get("enable_expert_parallel"):
        notes.warn("--enable-expert-parallel has no effect, as in BLIS")
    for name, needed, among in idle_settings(config, named):
        of_client = (
            "; the most that a client keeps open is --concurrency, of --workload distribution under blis-2026-08"
        ) * (name == "max_concurrency")
        missing = f"{as_option(needed)} {' or '.join(among)}".strip()
        notes.warn(f"{as_option(name)} has no effect without {missing}{of_client}")
    for remark in adapters.remarks(config, named):
        notes.warn(remark)
    if config.precise_kv_routing and (line := mechanism.without_effect(config)) is not None:
        notes.warn(line)
    warn_of_idle_options(options, config, source, notes)


def dashed(config: ClusterConfig) -> dict[str, Any]:
    """Return the configuration by BLIS's flag names; settings added later are left out at their defaults."""
    names = [name for name in FIELDS if name not in _OURS and not is_later(config, name)]
    return {name.replace("_", "-"): plain_value(getattr(config, name)) for name in names}


_OURS = ("variant", "corrected")  # settings that are no flags of the reference


def is_whole(record: RunRecord) -> bool:
    """Return whether the run completed or reached its horizon, as every run of BLIS does."""
    return record.outcome in (Outcome.COMPLETED, Outcome.HORIZON)
