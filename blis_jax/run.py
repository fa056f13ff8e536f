"""`python -m blis_jax.run`: one run, or recorded scenarios again; figures as BLIS prints them."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blis_jax import cli
from blis_jax.cli import Flag, Notes, Parser
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.config import ClusterConfig
    from blis_jax.records import RunRecord
    from blis_jax.simulate import Options
    from blis_jax.workload.spec import WorkloadSpec
    from blis_jax.workload.table import RequestTable, WorkloadNames

NAME = "blis_jax.run"
STREAM = "jax"  # the random stream that requests are drawn from; not the reference's
MOST_SLOTS = 8192
MOST_SEEDS = 2**32
LATEST_US = 2**60  # arrivals from here on would overflow a clock's sums

_DESCRIPTION = """\
Simulate one cluster of LLM instances under one workload and print the figures that BLIS prints.
Options, defaults and output are those of BLIS's `run` command. Times are whole microseconds (µs)
on the way in and milliseconds on the way out; lengths are tokens, memory is KV blocks.
"""
_EXAMPLES = """\
examples:
  a built-in workload on four instances, coefficients of the model's default GPU and TP:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct \\
      --num-instances 4 --workload-spec mixed

  weighted routing and SLO-tiered priorities, chunked prefill, figures and requests to a file:
    %(prog)s --model meta-llama/llama-3.1-8b-instruct \\
      --hardware H100 --tp 2 --num-instances 8 \\
      --workload-spec mixed --seed 43 --long-prefill-token-threshold 256 \\
      --routing-policy weighted --routing-scorers prefix-affinity:3,queue-depth:2 \\
      --scheduler priority-fcfs --priority-policy slo-tiered --results-path results.json

  recorded scenarios again, one .npz and one .json per scenario:
    %(prog)s --scenario scenarios/*.json --results-path replayed

exit codes: 0 done; 2 input that cannot be used, nothing was written; 3 at least one run needs a
mechanism that is not supported (the others were written).
Requests are drawn by the JAX generator: a seed gives the same requests every time, but not those
that BLIS draws from that seed. For BLIS's own requests, give a recorded workload with --requests.
"""


def _run_flags() -> tuple[Flag, ...]:
    return (
        Flag(
            "seed",
            cli.whole,
            None,
            "N",
            "seed of the drawn requests, 0 to 2^32 - 1; the workload file's if not given",
        ),
        Flag(
            "horizon",
            cli.whole,
            None,
            "US",
            "µs after which the simulation stops; none if not given",
        ),
        Flag(
            "results-path",
            str,
            None,
            "PATH",
            "file for the figures and every request (JSON); with --scenario a folder",
        ),
        Flag(
            "log",
            cli.one_of(*cli.LOG_LEVELS),
            "warn",
            "LEVEL",
            "how much is said on stderr: " + ", ".join(cli.LOG_LEVELS),
        ),
    )


def _workload_flags() -> tuple[Flag, ...]:
    folder = Path(__file__).parent / "data" / "workloads"
    builtin = ", ".join(sorted(file.stem for file in folder.glob("*.yaml")))
    return (
        Flag(
            "workload-spec",
            str,
            None,
            "FILE",
            f"YAML workload file (version 2), or the name of a built-in one: {builtin}",
        ),
        Flag(
            "num-requests", cli.whole, None, "N", "requests to draw; the file's number if not given"
        ),
        Flag("requests", str, None, "FILE", "recorded requests (.npz, the golden workload format)"),
        Flag("rng", _stream, STREAM, "NAME", "random stream of the drawn requests; only jax"),
    )


def _engine_flags() -> tuple[Flag, ...]:
    return (
        Flag(
            "clock",
            cli.one_of("int32", "int64", "float64"),
            "int32",
            "TYPE",
            "type of simulated time: int32 (64 bits beyond 35 minutes), int64 or float64",
        ),
        Flag(
            "slots",
            cli.whole,
            None,
            "N",
            "requests one instance can hold; found by itself if not given",
        ),
        Flag(
            "variant/profile",
            cli.one_of("scheduling", "routing"),
            "scheduling",
            "NAME",
            "track of the reference revision: routing gates slo-gated by queue depth",
        ),
        Flag(
            "no-cache",
            cli.truth,
            False,
            "BOOL",
            f"do not keep compiled programs in {_cache_words()}",
        ),
    )


_SCENARIO_FLAGS = (
    Flag(
        "workloads-dir",
        str,
        None,
        "DIR",
        "folder of the workload files; if not given, ../workloads from each scenario's folder",
    ),
)
# What may stand beside --scenario; the rest is in the scenario.
_BESIDE_SCENARIO = {"scenario", "workloads_dir", "results_path", "log", "clock", "slots"}
_BESIDE_SCENARIO |= {"variant", "no_cache"}

_USE_SPEC = "describe the traffic in a YAML file and give it with --workload-spec"
_USE_COEFFICIENTS = "give --alpha-coeffs, --beta-coeffs and --total-kv-blocks"
_USE_OPTIONS = "give --admission-policy, --routing-policy, --priority-policy and --scheduler"
_USE_RESULTS = "read the requests in the file of --results-path"
REFUSED = {
    "workload": f"distributions, presets and traces are not supported yet; {_USE_SPEC}",
    "workload-traces-filepath": "traces are not supported yet; give recorded --requests",
    **dict.fromkeys(
        (
            "rate",
            "prefix-tokens",
            "prompt-tokens",
            "prompt-tokens-stdev",
            "prompt-tokens-min",
            "prompt-tokens-max",
            "output-tokens",
            "output-tokens-stdev",
            "output-tokens-min",
            "output-tokens-max",
        ),
        f"it belongs to --workload distribution, which is not supported yet; {_USE_SPEC}",
    ),
    "roofline": f"the roofline latency model is not supported yet; {_USE_COEFFICIENTS}",
    "model-config-folder": f"the roofline latency model is not supported yet; {_USE_COEFFICIENTS}",
    "hardware-config": f"the roofline latency model is not supported yet; {_USE_COEFFICIENTS}",
    "defaults-filepath": f"the fits come with the package; for others {_USE_COEFFICIENTS}",
    "policy-config": f"policy files are not supported yet; {_USE_OPTIONS}",
    "fitness-weights": f"no fitness is computed; {_USE_RESULTS}",
    "trace-level": f"decision traces are not recorded; {_USE_RESULTS}",
    "counterfactual-k": f"decision traces are not recorded; {_USE_RESULTS}",
    "summarize-trace": f"decision traces are not recorded; {_USE_RESULTS}",
    "max-model-len": "it changes nothing in BLIS either; leave it out",
}


def _cache_words() -> str:
    return "$JAX_COMPILATION_CACHE_DIR or else ~/.cache/blis_jax/xla"


def _stream(text: str) -> str:
    if text == "reference":
        import argparse

        raise argparse.ArgumentTypeError(
            "the reference's own random stream is not supported yet; use --rng jax, "
            "or give recorded requests with --requests"
        )
    return cli.one_of(STREAM)(text)


def _refused_words() -> str:
    import textwrap

    names = ", ".join(f"--{name}" for name in REFUSED)
    text = f"Options of BLIS that are refused, each with a sentence: {names}."
    return textwrap.fill(text, 99, break_on_hyphens=False)


def make_parser() -> Parser:
    """The command's options."""
    parser = Parser(
        prog=f"python -m {NAME}",
        usage="%(prog)s --model NAME --workload-spec FILE [options]\n"
        "       %(prog)s --scenario FILE [FILE ...] [--results-path DIR]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES + _refused_words(),
    )
    parser.add_flags("workload", _workload_flags())
    parser.add_flags("run", _run_flags())
    cli.add_cluster_flags(parser)
    parser.add_flags("engine", _engine_flags())
    replay = parser.add_flags("replay of recorded scenarios", _SCENARIO_FLAGS)
    replay.add_argument(
        "--scenario",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="scenario files (.json, the golden format); each brings its own cluster and requests",
    )
    parser.refuse(REFUSED)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code."""
    return cli.run_command(NAME, _command, arguments)


def _command(arguments: Sequence[str] | None) -> int:
    given = make_parser().given(arguments)
    notes = Notes(NAME, given.get("log", "warn"))
    if "slots" in given and not 1 <= given["slots"] <= MOST_SLOTS:
        raise ConfigError(f"--slots must be between 1 and {MOST_SLOTS}, got {given['slots']}")
    if "scenario" in given:
        return _replay(given, notes)
    return _simulate_one(given, notes)


# --- one run --------------------------------------------------------------------------------------


def _simulate_one(given: Mapping[str, Any], notes: Notes) -> int:
    if "workloads_dir" in given:
        raise ConfigError("--workloads-dir has no meaning without --scenario; leave it out")
    if "workload_spec" in given and "requests" in given:
        raise ConfigError("--workload-spec and --requests are both given; give one of them")
    if "workload_spec" not in given and "requests" not in given:
        raise ConfigError(
            "no workload is given; give --workload-spec, for instance --workload-spec mixed, "
            "or recorded requests with --requests"
        )
    if given.get("horizon", 1) < 1:
        raise ConfigError(f"--horizon must be at least 1 µs, got {given['horizon']}")
    seed = given.get("seed")
    if seed is not None and not 0 <= seed < MOST_SEEDS:
        raise ConfigError(f"--seed must be between 0 and {MOST_SEEDS - 1}, got {seed}")
    config = cli.cluster_config(given)
    spec = None if "requests" in given else _read_spec(given)
    if spec is not None and spec.horizon and "horizon" not in given:
        config = config.replace(horizon=spec.horizon)
    results = Path(given["results_path"]) if "results_path" in given else None
    if results is not None:
        cli.check_writable(results)

    cli.prepare_backend(use_cache=not given.get("no_cache", False))
    from blis_jax.config import unsupported

    reason = unsupported(_dashed(config))
    if reason is not None:
        cli.say(NAME, f"error: not supported yet: {reason}")
        return cli.EXIT_UNSUPPORTED
    if spec is None:
        table, names = _load_requests(Path(given["requests"]), config.block_size_in_tokens)
    else:
        seed = spec.seed if seed is None else seed
        table, names = _draw(spec, seed, config.block_size_in_tokens)
        notes.warn(f"{table.num_rows} requests drawn, stream {STREAM} (not BLIS's), seed {seed}")
    _warn_of_idle_options(given, config, spec, notes)
    notes.info(
        f"coefficients {list(config.alpha_coeffs)}, {list(config.beta_coeffs)}; "
        f"{config.total_kv_blocks} KV blocks per instance"
    )
    started = time.perf_counter()
    record = _simulate(config, table, given)
    notes.info(f"simulated in {time.perf_counter() - started:.3f} s")
    if not _is_whole(record):
        cli.say(NAME, f"error: no result: {record.outcome.sentence}")
        return cli.EXIT_UNSUPPORTED
    from blis_jax.atomic_write import write_json
    from blis_jax.blis_files import results_document, results_text

    if results is not None:
        document = results_document(record, names.tenant_names)
        document |= {"provenance": _provenance(given, config, seed)}
        with cli.writing(results):
            write_json(results, document)
    print(results_text(record, config.priority_policy), end="", flush=True)
    return 0


def _provenance(
    given: Mapping[str, Any], config: ClusterConfig, seed: int | None
) -> dict[str, Any]:
    """What the results were made from; the reference's file ends before it."""
    from blis_jax import __version__

    is_drawn = "requests" not in given
    return {
        "program": f"blis_jax {__version__}",
        "profile": config.profile,
        "workload": given["workload_spec"] if is_drawn else given["requests"],
        "stream": STREAM if is_drawn else "recorded",
        "seed": seed if is_drawn else None,
        "config": _dashed(config),
    }


def _read_spec(given: Mapping[str, Any]) -> WorkloadSpec:
    """The workload with the options in place of its own numbers, as the reference resolves them."""
    from blis_jax.config import NO_HORIZON
    from blis_jax.workload.spec import list_builtin, load_builtin, load_spec, override

    text = given["workload_spec"]
    if Path(text).is_file() or os.sep in text or text.endswith((".yaml", ".yml")):
        spec = load_spec(text)
    elif text in list_builtin():
        spec = load_builtin(text)
    else:
        raise ConfigError(
            f"--workload-spec {text!r} is neither a file nor a built-in workload "
            f"({', '.join(list_builtin())}){cli.closest(text, list_builtin())}"
        )
    changes = {}
    if "num_requests" in given:
        if given["num_requests"] < 0:
            raise ConfigError(f"--num-requests must be at least 0, got {given['num_requests']}")
        changes["num_requests"] = given["num_requests"]
    if "horizon" in given:
        changes["horizon"] = given["horizon"] if given["horizon"] < NO_HORIZON else 0
    return override(spec, **changes) if changes else spec


def _draw(spec: WorkloadSpec, seed: int, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """Draw the requests; a client with too few draws gets more from the same key."""
    import jax

    from blis_jax.types import Outcome
    from blis_jax.workload.draw import compile_plan, draw

    if not 0 <= seed < MOST_SEEDS:
        raise ConfigError(
            f"seed: the workload's {seed} is not between 0 and {MOST_SEEDS - 1}; give --seed"
        )
    for headroom in (1.0, 2.0, 4.0, 8.0, 16.0):
        plan = compile_plan(spec, block_size=block_size, headroom=headroom)
        with jax.enable_x64(True):
            drawn = jax.jit(draw, static_argnums=0)(plan.shape, plan.params, jax.random.key(seed))
            table, is_short = jax.device_get(drawn)
        if not is_short:
            return _without_padding(table), plan.names
    raise ConfigError(f"--workload-spec: {Outcome.WORKLOAD_SHORT.sentence}; draw fewer requests")


def _without_padding(table: RequestTable) -> RequestTable:
    """The rows that arrive, which come first."""
    import dataclasses

    import numpy as np

    from blis_jax.workload.table import NEVER_US

    num_rows = int(np.count_nonzero(table.arrival_us != NEVER_US))
    if not num_rows:
        raise ConfigError("the workload has no request before its horizon; raise --horizon")
    columns = {
        field.name: getattr(table, field.name)[:num_rows]
        for field in dataclasses.fields(table)
        if not field.name.startswith("node_")
    }
    return dataclasses.replace(table, **columns)


def _load_requests(path: Path, block_size: int) -> tuple[RequestTable, WorkloadNames]:
    """A recorded workload, also checked for what the engine takes for granted."""
    import zipfile

    from blis_jax.workload.table import load_table

    if path.is_file() and not zipfile.is_zipfile(path):
        raise ConfigError(f"{path} is not a whole .npz archive; give a recorded workload")
    try:
        table, names = load_table(path, block_size)
    except ConfigError:
        raise
    except Exception as error:  # an .npz can be damaged in as many ways as zip, zlib and numpy know
        raise ConfigError(
            f"{path} cannot be used as a workload ({type(error).__name__}: {error}); "
            "give a file of the golden workload format"
        ) from None
    _check_table(path, table, names)
    return table, names


def _check_table(path: Path, table: RequestTable, names: WorkloadNames) -> None:
    import numpy as np

    from blis_jax.types import SLO_CLASSES

    if not table.num_rows:
        raise ConfigError(f"{path} holds no request; give a workload with at least one")
    limits = {
        "arrival_us": (0, LATEST_US),
        "output_len": (0, 2**31 - 1),
        "slo_class": (0, len(SLO_CLASSES) - 1),
        "tenant": (0, max(len(names.tenant_names) - 1, 0)),
    }
    for name, (low, high) in limits.items():
        values = np.asarray(getattr(table, name))
        is_bad = (values < low) | (values > high)
        if is_bad.any():
            row = int(np.argmax(is_bad))
            raise ConfigError(f"{path}: {name}[{row}] is {values[row]}; allowed is {low} to {high}")


def _warn_of_idle_options(
    given: Mapping[str, Any], config: ClusterConfig, spec: WorkloadSpec | None, notes: Notes
) -> None:
    """Options that are valid and yet change nothing here."""
    if given.get("routing_scorers") and config.routing_policy != "weighted":
        notes.warn(f"--routing-scorers has no effect on {config.routing_policy} routing")
    if spec is None:
        for name in ("seed", "num_requests", "rng"):
            if name in given:
                notes.warn(f"--{name.replace('_', '-')} has no effect on recorded requests")
        return
    from blis_jax.workload.spec import MeasureSpec, ineffective_settings

    for remark in ineffective_settings(spec):
        notes.warn(remark)
    if spec.measure != MeasureSpec():
        notes.warn("measure has no effect here: the figures are BLIS's, over all requests")


def _simulate(config: ClusterConfig, table: RequestTable, given: Mapping[str, Any]) -> RunRecord:
    from blis_jax.simulate import simulate

    return simulate(config, table, _options(given))


def _options(given: Mapping[str, Any]) -> Options:
    import jax

    from blis_jax.simulate import Options

    form = "rows" if jax.default_backend() == "cpu" else "lanes"
    return Options(num_slots=given.get("slots"), clock=given.get("clock", "int32"), form=form)


def _is_whole(record: RunRecord) -> bool:
    from blis_jax.types import Outcome

    return record.outcome in (Outcome.COMPLETED, Outcome.HORIZON)


def _dashed(config: ClusterConfig) -> dict[str, Any]:
    """The configuration under the reference's flag names."""
    from blis_jax.config import FIELDS

    values = {name.replace("_", "-"): getattr(config, name) for name in FIELDS if name != "variant"}
    return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}


# --- replay ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scenario:
    """One recorded run to be made again."""

    name: str
    document: Mapping[str, Any]  # the whole file
    workload: Path

    @property
    def flags(self) -> dict[str, Any]:
        """The recorded configuration, by the reference's flag names."""
        return dict(self.document["config"])


def _replay(given: Mapping[str, Any], notes: Notes) -> int:
    for name in given:
        if name not in _BESIDE_SCENARIO:
            raise ConfigError(
                f"--{name.replace('_', '-')} cannot be given with --scenario: "
                "a scenario brings its own cluster and requests; leave it out"
            )
    folder = Path(given["results_path"]) if "results_path" in given else None
    workloads = Path(given["workloads_dir"]) if "workloads_dir" in given else None
    scenarios = [_read_scenario(Path(path), workloads) for path in given["scenario"]]
    _check_names(scenarios, has_results=folder is not None)
    if folder is not None:
        cli.check_writable(folder, is_folder=True)
    cli.prepare_backend(use_cache=not given.get("no_cache", False))
    configs = [_config_of(scenario, given) for scenario in scenarios]
    tables = _load_workloads(scenarios, configs)

    progress = cli.Progress(len(scenarios))
    num_skipped = 0
    for index, (scenario, config) in enumerate(zip(scenarios, configs, strict=True)):
        progress.show(index, scenario.name)
        result: RunRecord | str
        if isinstance(config, str):
            result = f"not supported yet: {config}"
        else:
            table = tables[scenario.workload, config.block_size_in_tokens]
            record = _simulate(config, table, given)
            result = record if _is_whole(record) else record.outcome.sentence
        progress.clear()
        if isinstance(result, str) or isinstance(config, str):
            cli.say(NAME, f"skipped {scenario.name}: {result}")
            num_skipped += 1
            continue
        if folder is not None:
            _write(folder, scenario, config, result)
        _print_replayed(scenario, config, result, is_only=len(scenarios) == 1)
    if num_skipped:
        notes.warn(f"{num_skipped} of {len(scenarios)} scenarios skipped")
    return cli.EXIT_UNSUPPORTED if num_skipped else 0


def _read_scenario(path: Path, workloads: Path | None) -> Scenario:
    text = cli.read_text(path, "a scenario .json file")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, ValueError) else "nested too deeply"
        raise ConfigError(f"{path} is not JSON ({reason}); give a scenario file") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{path} is not a scenario: its top level is not an object")
    for key, kind, words in (
        ("config", dict, "an object of the run's options"),
        ("workload", str, "the name of a workload file"),
    ):
        if not isinstance(document.get(key), kind):
            found = "missing" if key not in document else f"{_brief(document[key])}"
            raise ConfigError(f"{path}: {key!r} is {found}, but must be {words}")
    name = document.get("name", path.stem)
    for key, value in (("name", name), ("workload", document["workload"])):
        if not isinstance(value, str) or not re.fullmatch(r"[\w+][\w.+-]*", value):
            raise ConfigError(
                f"{path}: {key!r} is {_brief(value)}, but must be a plain file name without ending"
            )
    folder = path.absolute().parent.parent / "workloads" if workloads is None else workloads
    workload = folder / f"{document['workload']}.npz"
    if not workload.is_file():
        raise ConfigError(
            f"{workload}, the workload of {path}, does not exist; give --workloads-dir"
        )
    return Scenario(name, document, workload)


def _brief(value: Any) -> str:
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


def _config_of(scenario: Scenario, given: Mapping[str, Any]) -> ClusterConfig | str:
    """The configuration of a scenario, or the mechanism that is not supported."""
    from blis_jax.config import FIELDS, from_flags, unsupported

    flags = scenario.flags
    known = {name.replace("_", "-") for name in FIELDS} | _NOT_ABOUT_THE_CLUSTER
    for name in flags:
        if name not in known:
            hint = cli.closest(name, sorted(known))
            raise ConfigError(f"scenario {scenario.name}: unknown option {name!r} in config{hint}")
    for name in _NEEDED:
        if name not in flags:
            raise ConfigError(f"scenario {scenario.name}: config lacks {name!r}; add it")
    try:
        reason = unsupported(flags)
        if reason is not None:
            return reason
        config = from_flags(flags)
        return config.replace(variant=given["variant"]) if "variant" in given else config
    except ConfigError as error:
        raise ConfigError(f"scenario {scenario.name}: {error}") from None
    except (TypeError, AttributeError):  # a list, say, where a word or a number belongs
        raise ConfigError(
            f"scenario {scenario.name}: a value in config has the wrong type; "
            "only coefficients are lists"
        ) from None


_NEEDED = ("num-instances", "total-kv-blocks", "alpha-coeffs", "beta-coeffs")
# Recorded options that say where the requests came from, or that `unsupported` looks at.
_NOT_ABOUT_THE_CLUSTER = {"seed", "roofline", "precise-kv-routing", "workload", "num-requests"}
_NOT_ABOUT_THE_CLUSTER |= {name for name in REFUSED if "tokens" in name or name == "rate"}


def _load_workloads(
    scenarios: Sequence[Scenario], configs: Sequence[ClusterConfig | str]
) -> dict[tuple[Path, int], RequestTable]:
    """Every workload once, before the first run, so that a bad one stops nothing midway."""
    tables = {}
    for scenario, config in zip(scenarios, configs, strict=True):
        if isinstance(config, str):
            continue
        key = (scenario.workload, config.block_size_in_tokens)
        if key not in tables:
            tables[key], _ = _load_requests(*key)
    return tables


def _write(folder: Path, scenario: Scenario, config: ClusterConfig, record: RunRecord) -> None:
    from blis_jax.blis_files import write_scenario

    kept = ("tags", "note", "seed", "workload", "workload_spec")
    details = {key: scenario.document[key] for key in kept if key in scenario.document}
    with cli.writing(folder):
        write_scenario(folder, scenario.name, record, _dashed(config) | scenario.flags, details)


def _print_replayed(
    scenario: Scenario, config: ClusterConfig, record: RunRecord, *, is_only: bool
) -> None:
    """The reference's blocks for one scenario; a line for each of several."""
    from blis_jax.blis_files import results_text
    from blis_jax.metrics import cluster_json

    if is_only:
        print(results_text(record, config.priority_policy), end="", flush=True)
        return
    block = cluster_json(record)
    figures = (
        "nothing completed"
        if block is None
        else (
            f"{block['completed_requests']} of {len(record.requests.arrival_us)} completed, "
            f"TTFT P99 {block['ttft_p99_ms']:.3f} ms, {block['tokens_per_sec']:.1f} tokens/s"
        )
    )
    print(f"{scenario.name}: {figures}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
