import dataclasses

import numpy as np
import pytest

from blis_jax.errors import ConfigError
from surrogate.columns import from_json, to_json
from sweeps.dataset.axes import read_axes
from sweeps.dataset.plan import DatasetSizes, make_plan
from sweeps.strategies.arms import arm_of
from sweeps.strategies.file import load_strategy
from sweeps.strategies.space import space_of
from tests.sweeps.tiny import tiny_space

SIZES = DatasetSizes(train=64, calibration=20, test=24, seeds=8, train_seeds=4, other_points=3)


def test_seeds_are_dealt_out_evenly() -> None:
    plan = make_plan(tiny_space(), (), SIZES, 0)
    train, held_out = plan.is_planned[:64], plan.is_planned[64:]
    assert (train.sum(axis=1) == 4).all() and not train[:, 8:].any()
    assert set(train[:, :8].sum(axis=0)) == {32}
    assert held_out[:, :8].all()
    assert held_out[:, 8:].any(axis=1).sum() == 3 and plan.roles[64 + 20] == "test"
    assert plan.is_planned.sum() == SIZES.num_runs


def test_seeds_that_do_not_divide_evenly_are_still_used_alike() -> None:
    sizes = dataclasses.replace(SIZES, seeds=7, train_seeds=3)
    counts = make_plan(tiny_space(), (), sizes, 0).is_planned[:64, :7]
    assert (counts.sum(axis=1) == 3).all()
    assert counts.sum(axis=0).max() - counts.sum(axis=0).min() <= 1


def test_same_arguments_give_the_same_plan_and_others_another() -> None:
    one, two, other = (make_plan(tiny_space(), (), SIZES, state) for state in (0, 0, 1))
    np.testing.assert_array_equal(one.codes, two.codes)
    np.testing.assert_array_equal(one.is_planned, two.is_planned)
    assert not np.array_equal(one.codes, other.codes)


def test_a_longer_training_sequence_begins_with_the_shorter_one() -> None:
    longer = dataclasses.replace(SIZES, train=128)
    short, long = (make_plan(tiny_space(), (), sizes, 0).codes for sizes in (SIZES, longer))
    np.testing.assert_array_equal(short[:64], long[:64])


def test_training_points_meet_a_column_at_no_limit() -> None:
    space = space_of(load_strategy("iter08_token_budget"))
    plan = make_plan(space, (), SIZES, 0)
    place = space.names.index("prefill_crit")
    assert plan.columns[place].unlimited_at == 0
    assert (plan.codes[:64, place] == 0).sum() >= 4
    assert plan.columns[space.names.index("age_weight")].is_log


def test_training_points_meet_tight_limits() -> None:
    """Of 4,096 points 256 are log-uniform over 1 to 512: 28 of 1 and 57 of 2 to 7 are expected."""
    space = space_of(load_strategy("iter08_token_budget"))
    sizes = dataclasses.replace(SIZES, train=4096)
    plan = make_plan(space, (), sizes, 0)
    chunk = plan.codes[:, space.names.index("prefill_crit")]
    trained, held_out = chunk[:4096], chunk[4096:]
    assert (trained == 0).sum() >= 256
    assert 8 + 15 <= (trained == 1).sum() <= 8 + 45
    assert 48 + 40 <= ((trained >= 2) & (trained <= 7)).sum() <= 48 + 80
    assert trained.max() <= 512 and (held_out == 1).mean() < 0.05


def test_points_become_configurations() -> None:
    plan = make_plan(tiny_space(), read_axes("rate=100:300,instances=2:4"), SIZES, 0)
    parameters, descriptors = plan.values(5)
    assert set(parameters) == set(tiny_space().names)
    assert 100 <= descriptors["rate"] <= 300 and isinstance(descriptors["instances"], int)
    assert plan.space.config_with(parameters).num_instances == 2
    assert from_json(to_json(plan.columns)) == plan.columns


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"train": 3}, "--points: got 3"),
        ({"seeds": 1}, "--seeds: got 1"),
        ({"train_seeds": 9}, "--train-seeds: got 9"),
        ({"other_points": 25}, "--other-points: got 25"),
    ],
)
def test_wrong_sizes_are_refused(change: dict[str, int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        dataclasses.replace(SIZES, **change).check()


def test_points_of_the_branch_have_their_limit_off_and_leave_the_others_as_they_are() -> None:
    space = space_of(load_strategy("iter08_token_budget"))
    without = make_plan(space, (), SIZES, 0)
    plan = make_plan(space, (), dataclasses.replace(SIZES, branch=5), 0)
    np.testing.assert_array_equal(plan.codes[:-10], without.codes)
    np.testing.assert_array_equal(plan.is_planned[:-10], without.is_planned)
    assert plan.roles[-10:].tolist() == ["branch calibration"] * 5 + ["branch test"] * 5
    place = space.names.index("prefill_crit")
    assert not plan.codes[-10:, place].any()
    assert len(np.unique(plan.codes[-10:, 0])) == 10  # drawn apart
    assert plan.is_planned[-10:, :8].all() and not plan.is_planned[-10:, 8:].any()
    assert plan.is_planned.sum() == plan.sizes.num_runs
    with pytest.raises(ConfigError, match="no parameter of this strategy has a value that means"):
        make_plan(tiny_space(), (), dataclasses.replace(SIZES, branch=5), 0)


def test_own_seeds_are_no_other_roles() -> None:
    sizes = dataclasses.replace(SIZES, seeds=12, own_seeds=5, other_points=0, first_seed=100)
    plan = make_plan(tiny_space(), (), sizes, 0)
    seeds = np.array(sizes.all_seeds)[plan.places]
    assert seeds.shape == (64 + 20 + 24, 5) and plan.is_planned.all()
    of_role = {role: set(seeds[plan.roles == role].ravel()) for role in np.unique(plan.roles)}
    assert of_role["train"] == set(range(100, 112))
    assert of_role["calibration"] == set(range(112, 124)) and of_role["test"] == set(
        range(124, 136)
    )
    assert all(len(set(row)) == 5 for row in seeds.tolist())
    counts = np.bincount(seeds[plan.roles == "train"].ravel() - 100)
    assert counts.max() - counts.min() <= 1


def test_a_baseline_has_every_seed_once() -> None:
    arm = arm_of("iter00_baseline")
    pooled = make_plan(tiny_space(), (), SIZES, 0, arm)
    assert (pooled.roles == "baseline").sum() == 1 and pooled.is_planned[-1].all()
    sizes = dataclasses.replace(SIZES, seeds=7, own_seeds=5, train_seeds=4, other_points=0)
    plan = make_plan(tiny_space(), (), sizes, 0, arm)
    is_baseline = plan.roles == "baseline"
    seeds = plan.places[is_baseline][plan.is_planned[is_baseline]]
    assert sorted(seeds.tolist()) == list(range(21))
    assert np.isnan(plan.codes[is_baseline]).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"own_seeds": 9}, "--own-seeds: got 9, allowed is 0 to 8"),
        ({"own_seeds": 2}, "no two points share seeds"),
        ({"branch": -1}, "--branch: got -1"),
    ],
)
def test_sizes_that_cannot_be_are_refused(changes: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        dataclasses.replace(SIZES, **changes).check()
