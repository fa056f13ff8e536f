"""The package's public names, which are found when they are asked for."""

import importlib
import types

import blis_jax


def test_public_names_stay_what_they_are_once_their_modules_are_imported():
    for _ in range(2):
        for name in blis_jax.__all__:
            assert not isinstance(getattr(blis_jax, name), types.ModuleType), name
    importlib.import_module("blis_jax.engine.runner.simulation")
    assert callable(blis_jax.simulate)
