"""A router that is an arg max is found, and its scorer with a picker decides as it does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blis_jax.policies import registry
from blis_jax.policies.contract import Policy, routing_policy
from blis_jax.policies.reading import reading
from blis_jax.policies.scenes import array_of, scene_of
from sweeps.promote.golang.arg_max import TRIED_SIZE, ScoredRouter, scored
from tests.support.evolve.cases import NUM_SCORERS, cases_of, decided

pytestmark = pytest.mark.lenient_promotion
ROUTERS = "papers/openevolve/routers.py"


def found(policy: Policy) -> ScoredRouter | None:
    """Look for scores with the scorers' own in the context, not computed."""
    policy = reading(policy, num_scorers=NUM_SCORERS)
    scene = scene_of("routing", TRIED_SIZE, 1, scorers=NUM_SCORERS)
    scene = dataclasses.replace(
        scene, came_from=None, computed_tokens=None, scores=array_of(np.float64, TRIED_SIZE)
    )
    return scored(policy, (), scene)


def rated_best(router: ScoredRouter) -> Policy:
    """Return a policy that answers 1 where the scorer gives 1 to what the router chooses, and less to no better one."""
    policy, scorer = router.policy, router.scorer

    @routing_policy(start=policy.start, is_random=True)
    def route(params, state, context):
        chosen, state = policy.decide(params, state, context)
        scores, _ = scorer.decide(params, state, context)
        return ((scores[chosen] == 1) & (scores <= 1).all()).astype(jnp.int32), state

    return route


@pytest.mark.parametrize(
    ("name", "sign", "draws"),
    [("winner", 1, True), ("glia", 1, False), ("llq", -1, False), ("lor", -1, False)],
)  # fmt: skip
def test_the_scorer_of_a_router_rates_best_what_it_chooses(
    name: str, sign: int, draws: bool
) -> None:
    router = found(registry.find("routing", f"{ROUTERS}:{name}"))
    assert router is not None
    assert (router.sign, router.draws) == (sign, draws)
    for size in (1, 3, 6):
        cases = cases_of(7, 300, size)
        cases = dataclasses.replace(cases, is_active=np.ones_like(cases.is_active))
        assert (decided(rated_best(router), cases)[0] == 1).all()


GO = """
scores := make(map[string]float64, len(snapshots))
for _, snap := range snapshots {
	scores[snap.ID] = 1.0 / (1.0 + float64(snap.QueueDepth))
}
best := -1.0
for _, snap := range snapshots {
	if scores[snap.ID] > best {
		best = scores[snap.ID]
	}
}
var tied []int
for i, snap := range snapshots {
	if scores[snap.ID] == best {
		tied = append(tied, i)
	}
}
bestIdx := tied[0]
if len(tied) > 1 && ws.rng != nil {
	bestIdx = tied[ws.rng.Intn(len(tied))]
}
"""


def read_from_go(folder: Path, text: str) -> Policy:
    pytest.importorskip("tree_sitter_go", reason="the extra `evolve` is not installed")
    from sweeps.evolve.go.reader import policy_of
    from sweeps.evolve.go.source import read

    (folder / "block.go").write_text(text)
    (folder / "block.py").write_text(policy_of(read(folder / "block.go")))
    return registry.find("routing", f"{folder / 'block.py'}:route")


def test_ties_by_chance_are_known(tmp_path: Path) -> None:
    router = found(read_from_go(tmp_path, GO))
    assert router is not None
    assert (router.sign, router.draws) == (1, True)
    first = found(read_from_go(tmp_path, GO.replace("ws.rng != nil", "false")))
    assert first is not None
    assert not first.draws


def test_the_best_have_one_and_the_others_less_in_their_order(tmp_path: Path) -> None:
    router = found(read_from_go(tmp_path, GO))
    assert router is not None
    scene = scene_of("routing", 5, 1, scorers=NUM_SCORERS)

    def rated(queues: list[int]) -> list[float]:
        seen = dataclasses.replace(scene.snapshots, queue_depth=jnp.array(queues, jnp.int32))
        context = dataclasses.replace(scene, snapshots=seen)
        with jax.enable_x64(True):
            return np.asarray(router.scorer.decide(None, None, context)[0]).tolist()

    scores = rated([0, 3, 0, 1, 9])
    assert scores[0] == scores[2] == 1
    assert 1 > scores[3] > scores[1] > scores[4] == 0
    assert rated([4] * 5) == [1] * 5


@pytest.mark.parametrize("name", [f"{ROUTERS}:sabotaged", "round-robin"])
def test_other_routers_are_none(name: str) -> None:
    assert found(registry.find("routing", name)) is None


def test_two_random_choices_are_no_arg_max(tmp_path: Path) -> None:
    block = """
a, b := ws.rng.Intn(len(snapshots)), ws.rng.Intn(len(snapshots))
bestIdx := a
if snapshots[b].QueueDepth < snapshots[a].QueueDepth {
	bestIdx = b
}
"""
    assert found(read_from_go(tmp_path, block)) is None
