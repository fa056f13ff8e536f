"""`python -m blis_jax.run`: one run, or recorded scenarios again; figures as BLIS prints them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax.backend import prepare_backend
from blis_jax.cluster.instance_groups import has_cpu_tier, instance_lines
from blis_jax.commands import cli, cluster_settings
from blis_jax.commands.cli import Notes
from blis_jax.commands.flags import report_flags, trace_flags
from blis_jax.commands.flags.cluster_flags import name_of
from blis_jax.commands.flags.flow_flags import FLOW_FLAGS
from blis_jax.commands.run import decisions, scores, sessions
from blis_jax.commands.run.flags import MOST_SLOTS, NAME, make_parser
from blis_jax.commands.run.requests import dashed, is_whole
from blis_jax.commands.run.scenarios import replay
from blis_jax.commands.run.workload import (
    Source,
    requests_of,
    source_of,
    warn_of_idle_options,
    with_workload_spec,
)
from blis_jax.errors import ConfigError
from blis_jax.files.overwriting import refuse_existing
from blis_jax.policies import registry
from blis_jax.policies.seeds import draws

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig
    from blis_jax.results.labels import Labels
    from blis_jax.results.records import RunRecord
    from blis_jax.results.scores import Verdicts
    from blis_jax.workload.reference.generate import DrawnWorkload


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    given = trace_flags.renamed(with_workload_spec(make_parser().given(arguments)))
    notes = Notes(NAME, given.get("log", "warn"))
    cli.silence_warnings(given.get("log", "warn"))
    if "slots" in given and not 1 <= given["slots"] <= MOST_SLOTS:
        raise ConfigError(f"--slots must be between 1 and {MOST_SLOTS}, got {given['slots']}")
    if "scenario" in given:
        if "steady" in given:
            raise ConfigError("--steady looks at one run; leave out --scenario")
        return replay(given, notes)
    return simulate_one(given, notes)


# --- one run --------------------------------------------------------------------------------------


def simulate_one(given: Mapping[str, Any], notes: Notes, users: DrawnWorkload | None = None) -> int:
    """Make the run that the options of `run` describe, print its figures and write its files; the exit code.

    `users` take the place of the sessions that the options describe.
    """
    if "workloads_dir" in given:
        raise ConfigError("--workloads-dir has no meaning without --scenario; leave it out")
    if given.get("horizon", 1) < 1:
        raise ConfigError(f"--horizon must be at least 1 µs, got {given['horizon']}")
    settings = cluster_settings.resolved(given)
    shares = settings.pop("tenant_shares", {})
    config = cluster_settings.cluster_config(settings)
    source = source_of(given)
    if source.spec is not None and source.spec.horizon and "horizon" not in given:
        config = config.replace(horizon=source.spec.horizon)
    _check_outputs(given)
    prepare_backend(use_cache=not given.get("no_cache", False))
    from blis_jax.results.labels import labels_of

    trace = trace_flags.read(given, notes) if source.is_trace else None
    asked = scores.scores_of(given, source.spec, trace)
    decisions.check(given, config, notes)
    workload, run = users or sessions.closed_loop_of(source), None
    table, names = (
        requests_of(source, config) if trace is None else trace_flags.to_table(trace, config)
    )
    config = cluster_settings.with_shares(config, shares, names.tenant_names)
    table = sessions.placed_table(table, names, config, notes)
    _say_stream(source, table.num_rows, notes)
    if not table.num_rows:
        notes.warn("no request arrives before the horizon, so there are no figures")
    _warn_of_idle_options(given, config, source, notes)
    for line in instance_lines(config):
        notes.info(line)
    started = time.perf_counter()
    if workload is None:
        said = notes if source.is_trace else None
        record = sessions.run_of_table(config, table, names, given, source.policy_seed, said)
    else:
        run = sessions.run_of_users(config, workload, given, source.policy_seed)
        record, table, names = run.record, run.table, sessions.names_of_run(run)
        notes.info(f"{table.num_rows} requests arrived, found in {run.num_passes} passes")
    notes.info(f"simulated in {time.perf_counter() - started:.3f} s")
    if not is_whole(record):
        cli.say(NAME, f"error: no result: {record.outcome.sentence}")
        return cli.EXIT_UNSUPPORTED
    if sessions.is_revised(source):
        sessions.write_trace(given, record, source, run, asked.limits)
    else:
        drawn = table, names, source.spec
        trace_flags.write_output(given, record, trace, drawn, asked.limits, notes)
    _note_inert_tier(config, record, notes)
    labels = labels_of(record, table, names, source.spec, run.request_ids() if run else None)
    _tell(given, config, record, labels, source, asked)
    return 0


def _tell(
    given: Mapping[str, Any],
    config: ClusterConfig,
    record: RunRecord,
    labels: Labels,
    source: Source,
    asked: scores.Scores,
) -> None:
    """Write the files of figures, and print them."""
    from blis_jax.results.blis_files import results_text

    verdicts = scores.verdicts_on(record, labels.request_id, asked)
    _write(given, config, record, labels, source, verdicts)
    print(results_text(record, labels, config, verdicts), end="", flush=True)
    if decisions.is_shown(given):
        from blis_jax.results.august_text import decision_lines

        print("\n".join(decision_lines(record)), flush=True)
    if "steady" in given:
        from blis_jax.reports.steady_words import steady_lines

        print("\n".join(["", "Steady state", *steady_lines(record)]))


def _check_outputs(given: Mapping[str, Any]) -> None:
    """Refuse places that files cannot have, before anything is computed."""
    outputs = _outputs(given)
    report_flags.check_timeline(given)
    for path in outputs.values():
        cli.check_writable(path, is_folder=path.suffix == ".zarr")
    trace_flags.check_output(given)
    refuse_existing(given, outputs)
    if "kv_timeline" in given:
        from blis_jax.results.dataset import TABLE_FORMATS, checked_suffix

        checked_suffix(Path(given["kv_timeline"]), TABLE_FORMATS)


def _outputs(given: Mapping[str, Any]) -> dict[str, Path]:
    """The files that are asked for, by option."""
    names = ("results_path", "kv_timeline", "timeline", "saturation_report")
    return {f"--{name.replace('_', '-')}": Path(given[name]) for name in names if name in given}


def _write(
    given: Mapping[str, Any],
    config: ClusterConfig,
    record: RunRecord,
    labels: Labels,
    source: Source,
    verdicts: Verdicts,
) -> None:
    """The files that are asked for; the reference's ends before `kv`."""
    from blis_jax.files.atomic_write import write_json
    from blis_jax.metrics.kv import kv_document, timelines
    from blis_jax.results.blis_files import results_document

    if "results_path" in given:
        document = results_document(record, labels) | verdicts.fields
        document["kv"] = kv_document(record, has_cpu_tier(config))
        document["provenance"] = _provenance(given, config, source)
        with cli.writing(Path(given["results_path"])):
            write_json(Path(given["results_path"]), document)
    if "kv_timeline" in given:
        from blis_jax.results.dataset import save_table

        with cli.writing(Path(given["kv_timeline"])):
            save_table(timelines(record, config.block_size_in_tokens), given["kv_timeline"])
    if "timeline" in given:
        from blis_jax.reports.perfetto import TracedRun, write_trace

        path, traced = Path(given["timeline"]), TracedRun("", record, config.block_size_in_tokens)
        with cli.writing(path):
            write_trace([traced], path, {"workload": source.title, "seed": str(source.seed)})


def _note_inert_tier(config: ClusterConfig, record: RunRecord, notes: Notes) -> None:
    from blis_jax.metrics.kv import INERT, INERT_SENTENCE, cpu_tier

    if cpu_tier(record, has_cpu_tier(config)) == INERT:
        notes.warn(INERT_SENTENCE)


def _provenance(given: Mapping[str, Any], config: ClusterConfig, source: Source) -> dict[str, Any]:
    """What the results were made from."""
    import dataclasses

    from blis_jax import __version__

    simple = source.distribution
    return {
        "program": f"blis_jax {__version__}",
        "profile": config.profile,
        "workload": source.title,
        **({"distribution": dataclasses.asdict(simple)} if simple else {}),
        **(trace_flags.provenance(given) if source.is_trace else {}),
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
    given: Mapping[str, Any], config: ClusterConfig, source: Source, notes: Notes
) -> None:
    """Options that are valid and yet change nothing here."""
    if given.get("routing_scorers") and config.routing_policy != "weighted":
        notes.warn(f"--routing-scorers has no effect on {config.routing_policy} routing")
    if given.get("decode_routing_scorers") and not config.decode_scorers():
        notes.warn(
            "--decode-routing-scorers has no effect: the decode pool's routing is not weighted"
        )
    for setting in registry.DECODE_SETTINGS.values():
        if setting in given and config.hand_over_policy == registry.NONE:
            option = f"--{setting.replace('_', '-')}"
            notes.warn(f"{option} has no effect without --hand-over-policy")
    if given.get("enable_expert_parallel"):
        notes.warn("--enable-expert-parallel has no effect, as in BLIS")
    if not config.flow_control:
        for name in sorted(name_of(flag) for flag in FLOW_FLAGS if name_of(flag) in given):
            if name != "flow_control":
                notes.warn(f"--{name.replace('_', '-')} has no effect without --flow-control")
    if config.precise_kv_routing:
        from blis_jax.engine.mechanism import without_effect

        if (line := without_effect(config)) is not None:
            notes.warn(line)
    warn_of_idle_options(given, config, source, notes)
