"""A search on several loads: whose figures stand where, and what is refused."""

import pytest

from blis_jax.errors import ConfigError
from sweeps.runs.bench import Bench, workload_of
from sweeps.search.loads import LoadBenches, load_specs
from sweeps.search.objectives import SeedResult, Valuation
from sweeps.search.result import by_class, figures
from sweeps.strategies.file import parse_strategy
from sweeps.strategies.space import space_of
from tests.sweeps.tiny import TINY

SEVERAL = (
    TINY.replace(
        "success_criteria:", "loads: {slow: {workload: mixed, rate: 10}}\nsuccess_criteria:"
    )
    .replace(
        "objectives: [", 'objectives: [{metric: "ttft_p99_ms[critical]", at: slow, weight: 2}, '
    )
    .replace(
        "constraints:",
        "constraints:\n  - {metric: tokens_per_sec, at: slow, direction: max, threshold: 9}",
    )
)


def test_figures_of_all_loads_stand_beside_each_other() -> None:
    """The load is the tiny workload itself at a tenth of its rate."""
    own = TINY[TINY.index("workload:") : TINY.index("seeds:")].replace("workload:", "").splitlines()
    inline = "\n".join(f"    {line}" for line in own if line)
    text = SEVERAL.replace(
        "loads: {slow: {workload: mixed, rate: 10}}",
        f"loads:\n  slow:\n    rate: 20\n    workload:\n{inline}",
    )
    strategy = parse_strategy(text, "several.yaml")
    space, valuation = space_of(strategy), Valuation(strategy, has_loads=True)
    assert valuation.names_at("slow") == ("ttft_p99_ms[critical]", "tokens_per_sec")
    specs = load_specs(strategy)
    main = Bench(workload_of(strategy), (42, 43), "reference", valuation.names)
    config = space.config_at(space.at([0.3, 0.6, 0.9]))
    (runs,) = LoadBenches(main, valuation, specs).run([config])
    (mine,) = main.run([config])
    (slow,) = Bench(specs["slow"], (42, 43), "reference", valuation.names_at("slow")).run([config])
    for run, one, other in zip(runs, mine, slow, strict=True):
        assert one.metrics.items() <= run.metrics.items()
        assert run.metrics["tokens_per_sec at slow"] == other.metrics["tokens_per_sec"]
        assert run.metrics["tokens_per_sec"] > 1.5 * run.metrics["tokens_per_sec at slow"]
    worth = valuation.worth(runs)
    assert worth.objectives[0] != worth.objectives[1]
    assert worth.penalties["tokens_per_sec at slow"] == 0.0
    assert set(by_class(figures(runs))["critical"]) == {"ttft_p99_ms", "ttft_p99_ms at slow"}


def test_a_run_that_fails_at_one_load_is_a_failure() -> None:
    from sweeps.search.loads import _beside

    whole, failed = SeedResult("COMPLETED", {"ttft_p99_ms": 1.0}), SeedResult("LIVELOCK")
    for one, other in ((whole, failed), (failed, whole)):
        assert _beside(one, other, "slow") == failed


def test_what_is_wrong_is_said() -> None:
    unknown = parse_strategy(SEVERAL.replace("at: slow", "at: slaw"), "several.yaml")
    with pytest.raises(ConfigError, match=r"objectives\[0\].at: there is no load 'slaw'.*slow"):
        Valuation(unknown, has_loads=True)
    with pytest.raises(ConfigError, match=r"loads: only sweeps\.optimize runs a point on several"):
        Valuation(parse_strategy(SEVERAL, "several.yaml"))
    with pytest.raises(ConfigError, match=r"loads.slow.rate"):
        parse_strategy(SEVERAL.replace("rate: 10", "rate: 0"), "several.yaml")
