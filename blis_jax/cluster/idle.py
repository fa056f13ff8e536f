"""Find settings that change nothing: what would read them is off, or they mean instances that are not there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from blis_jax.cluster.named_policies import names_in_use
from blis_jax.cluster.router import FlowSettings
from blis_jax.cluster.settings import declared_in
from blis_jax.core.kinds import KINDS
from blis_jax.errors import ConfigError
from blis_jax.files.python_files import is_file
from blis_jax.policies import registry

if TYPE_CHECKING:
    from blis_jax.cluster.config import ClusterConfig

_SWITCHES = {  # settings by the one without which they have no effect
    "flow_control": tuple(name for name in declared_in(FlowSettings) if name != "flow_control"),
    "kv_cpu_blocks": ("kv_offload_threshold", "kv_transfer_bandwidth", "kv_transfer_base_latency"),
}
_SWITCH_OF = {name: switch for switch, names in _SWITCHES.items() for name in names}


def idle_settings(
    config: ClusterConfig, given: Collection[str]
) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield each given setting that has no effect, the setting that it needs, and the values of that; none: any."""
    for name in sorted(given):
        switch, number = _SWITCH_OF.get(name), registry.settings().get(name)
        if switch is not None and not getattr(config, switch):
            yield name, switch, ()
        elif number is not None and not _is_read(config, number):
            yield name, KINDS[number.kind].setting, number.policies


def _is_read(config: ClusterConfig, number: registry.Setting) -> bool:
    """Return whether a policy in use has the number; one from a file may have it."""
    used = names_in_use(config, number.kind)
    return any(is_file(name) or name in number.policies for name in used)


def refuse_absent_instances(config: ClusterConfig) -> None:
    """Refuse an outage of an instance that the cluster does not have, and an autoscaler whose least is above its most.

    Raises:
        ConfigError: the message begins with the setting.
    """
    last = config.num_instances - 1
    if config.cluster_policy == "outage-at" and config.outage_at_instance > last:
        raise ConfigError(
            f"outage_at_instance must be 0 to {last}, since instances are counted from 0, got "
            f"{config.outage_at_instance}"
        )
    least, most = config.autoscaler_min_instances, config.autoscaler_max_instances
    if config.cluster_policy == "autoscaler" and least > most:
        raise ConfigError(
            f"autoscaler_min_instances must be at most autoscaler_max_instances ({most}), got {least}"
        )
