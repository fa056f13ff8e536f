"""Clusters written as options of the reference's command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from blis_jax.cluster.config import ClusterConfig
from blis_jax.errors import ConfigError

if TYPE_CHECKING:
    from blis_jax.commands.cli import Parser


def config_from_arguments(words: Sequence[str]) -> ClusterConfig:
    """The cluster that options of the reference's command line describe."""
    return of_arguments(words)[0]


def of_arguments(words: Sequence[str]) -> tuple[ClusterConfig, int | None]:
    """The cluster, and the number of requests if it is given."""
    from blis_jax.commands.cluster_settings import cluster_config

    given = _arguments_parser().given(words)
    if given.get("num_requests", 1) < 1:
        raise ConfigError(f"--num-requests must be at least 1, got {given['num_requests']}")
    return cluster_config(given), given.get("num_requests")


def _arguments_parser() -> Parser:
    from blis_jax.commands.cli import Flag, Parser, whole
    from blis_jax.commands.flags.cluster_flags import add_cluster_flags

    parser = Parser(prog="fixed_args", add_help=False)
    add_cluster_flags(parser)
    flags = (
        Flag("num-requests", whole, None, "N", "requests of the workload"),
        Flag("horizon", whole, None, "US", "end of the simulation"),
    )
    parser.add_flags("workload", flags)
    elsewhere = "give it as a key of the file"
    parser.refuse({"workload-spec": f"{elsewhere}, workload", "seed": f"{elsewhere}, seeds"})
    return parser
