"""Arms: named configurations, given as texts, to be run and compared.

`[LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]]`: a strategy of the library, a file, or the result of a search
(`.json`, its best point); one of its named points; and parameters or settings that replace the strategy's.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blis_jax.calibrate.posterior import Posterior, load
from blis_jax.cluster.config import FIELDS, ClusterConfig, nearest_setting
from blis_jax.cluster.idle import idle_settings, refuse_absent_instances
from blis_jax.cluster.revisions import served
from blis_jax.cluster.router import parse_scorers, weights_of, with_room, with_weights
from blis_jax.cluster.setting_values import plain_value
from blis_jax.errors import ConfigError, choices, closest
from blis_jax.files.atomic_write import fingerprint
from blis_jax.files.input_files import read_json
from blis_jax.files.python_files import files_in, with_absolute_files
from blis_jax.files.strict_yaml import read_yaml
from blis_jax.policies.their_names import as_written, ours
from blis_jax.traces.measured.run import AS_VLLM
from sweeps.strategies.file import (
    SHORT_NAMES,
    Strategy,
    converted,
    list_library,
    load_strategy,
    with_instances,
    with_mechanism,
)
from sweeps.strategies.moved import (
    config_from_arguments,
    is_setting,
    replaced,
    today,
    values_for_hash,
)
from sweeps.strategies.space import SCORERS, Space, space_of

_FORM = "[LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]]"


@dataclass(frozen=True)
class Arm:
    """A named configuration.

    `strategy` is the file that the arm came from, None for a search's result; `given` are the settings in the text.
    """

    name: str
    config: ClusterConfig
    strategy: Strategy | None = None
    given: frozenset[str] = frozenset()

    def settings_on(self, gpu: str) -> dict[str, Any]:
        """Return the settings that the arm's file has for this GPU alone, except those that the text sets."""
        settings = {} if self.strategy is None else self.strategy.settings_on(gpu)
        return {name: value for name, value in settings.items() if name not in self.given}


def list_names() -> tuple[str, ...]:
    """Return the strategies that are known by name."""
    return (*list_library(), *SHORT_NAMES)


def arms_of(
    texts: Sequence[str],
    instances: str | None = None,
    is_real: bool = False,
    fit: str | None = None,
) -> tuple[Arm, ...]:
    """Read several arms, see `on_instances`, `as_served` and `on_server`; their names must differ.

    Raises:
        ConfigError: a text is no arm, or two arms have one name.
    """
    read = (on_instances(arm_of(text), instances) for text in texts)
    arms = as_served(read, is_real or fit is not None)
    if fit is not None:
        arms = on_server(arms, load(Path(fit)))
    names = [arm.name for arm in arms]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"two arms are named {name!r}; put LABEL= before one of them")
    return arms


def on_instances(arm: Arm, instances: str | None) -> Arm:
    """Return the arm with its instances replaced by the groups of instances in a file, if a file is given."""
    if instances is None:
        return arm
    return dataclasses.replace(arm, config=arm.config.replace(instances=instances))


def as_served(arms: Iterable[Arm], is_real: bool) -> tuple[Arm, ...]:
    """Return arms as real servers would run them, see `served`: all arms, if `is_real` or one needs a correction."""
    arms = tuple(arms)
    is_real = is_real or any(served(arm.config, is_real=False) != arm.config for arm in arms)
    return tuple(dataclasses.replace(arm, config=served(arm.config, is_real)) for arm in arms)


def on_server(arms: Iterable[Arm], fit: Posterior) -> tuple[Arm, ...]:
    """Return arms with a calibration's coefficients and server; settings that an arm states or tunes stay."""
    return tuple(dataclasses.replace(arm, config=_on_server(arm, fit)) for arm in arms)


def _on_server(arm: Arm, fit: Posterior) -> ClusterConfig:
    kept = set(arm.given)
    if arm.strategy is not None:
        targets = (parameter.target for parameter in arm.strategy.parameters)
        kept |= {today(target) for target in targets if target is not None}
    if not arm.config.corrected:
        kept |= set(AS_VLLM)
    server = {name: value for name, value in fit.server_settings.items() if name not in kept}
    fixed = with_room(server, {name: arm.config.value(name) for name in kept if name in FIELDS})
    server |= {name: value for name, value in fixed.items() if name in server}
    return fit.configured(arm.config).replace(**server)


def arm_of(text: str) -> Arm:
    """Read an arm from a word of the command line, `[LABEL=]STRATEGY[@POINT][:NAME=VALUE[;NAME=VALUE...]]`.

    Raises:
        ConfigError: a part of the text is wrong; the error says which.
    """
    match = re.fullmatch(
        r"(?:(?P<label>[^=:@]+)=)?(?P<who>[^=:@;]+)(?:@(?P<point>[^:]+))?(?::(?P<rest>.+))?", text
    )
    if match is None:
        raise ConfigError(f"arm {text!r} does not have the form {_FORM}")
    who, name = match["who"].strip(), match["point"]
    values = _values(text, match["rest"] or "")
    label = (match["label"] or text).strip()
    whole, _, of_short = SHORT_NAMES.get(who, who).partition("@")
    if (of_short or who.endswith(".json")) and name is not None:
        raise ConfigError(f"arm {text!r}: {who} has no named points; leave @{name} out")
    if whole in list_library() or who.endswith((".yaml", ".yml")):
        strategy, name = load_strategy(whole), name or of_short or None
        space = space_of(strategy)
        parameters = {key: value for key, value in values.items() if key in space.names}
        settings = {key: value for key, value in values.items() if key not in space.names}
        config = configured(f"arm {text!r}", space, name, parameters, settings)
        _refuse_idle(f"arm {text!r}", config, frozenset(map(today, settings)))
        return Arm(label, config, strategy, frozenset(map(today, values)))
    if who.endswith(".json"):
        config = with_settings(f"arm {text!r}", _best_of(Path(who)), values)
        _refuse_idle(f"arm {text!r}", config, frozenset(map(today, values)))
        return Arm(label, config, given=frozenset(map(today, values)))
    raise ConfigError(
        f"arm {text!r}: strategy {who!r} is unknown; {choices(who, list_names())}; a .yaml file "
        "and the .json result of a search will do too"
    )


def _refuse_idle(source: str, config: ClusterConfig, given: frozenset[str]) -> None:
    for name, needed, among in idle_settings(config, given):
        if needed in given and not among:  # it is switched off where the setting stands
            continue
        missing = f"{needed} {' or '.join(among)}".strip()
        raise ConfigError(
            f"{source}: {name} has no effect without {missing}; give that too, or leave {name} out"
        )
    try:
        refuse_absent_instances(config)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def strategy_of(text: str) -> Strategy:
    """Read a strategy from a word of the command line, `STRATEGY[:NAME=VALUE[;NAME=VALUE...]]`.

    Raises:
        ConfigError: a part of the text is wrong; the error says which.
    """
    who, _, rest = text.partition(":")
    values = _values(text, rest)
    strategy = load_strategy(who)
    parameters = space_of(strategy).names if values else ()
    for name in values:
        if name in parameters:
            raise ConfigError(
                f"{text}: {name} is a parameter of {who}, which is varied here; leave it out"
            )
    if "instances" in values:
        strategy = with_instances(strategy, str(values.pop("instances")))
    return with_mechanism(strategy, _ours(text, values))


def _values(text: str, rest: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in rest.split(";"))):
        name, equals, value = map(str.strip, part.partition("="))
        if not (equals and name and value) or re.search(r",\s*[a-z_]+=", value):
            several = "" if "," not in part else "; write a semicolon between settings"
            raise ConfigError(f"arm {text!r}: {part!r} is not NAME=VALUE{several}")
        if name in values:
            raise ConfigError(f"arm {text!r}: {name} is given twice; keep one of them")
        read = read_yaml(value, f"arm {text!r}, {name}")
        field = FIELDS.get(today(name))
        has_many = field is not None and str(field.type).startswith("tuple[float")
        values[name] = _numbers_or(read) if has_many else _number_or(read)
    return values


def _numbers_or(value: object) -> object:
    """Return comma-separated numbers as a list, as options of `run` accept them; any other value unchanged."""
    try:
        return [float(part) for part in value.split(",")] if isinstance(value, str) else value
    except ValueError:
        return value


def _number_or(value: object) -> object:
    """Return text such as 1e-5, which YAML does not read as a number, as a number; any other value unchanged."""
    if not isinstance(value, str) or not re.fullmatch(r"[+-]?[0-9.]+[eE][+-]?[0-9]+", value):
        return value
    return float(value)


def _best_of(path: Path) -> ClusterConfig:
    """Return the best point in the result of `blis-jax optimize`, as an arm's values."""
    document = read_json(path, "a result of blis-jax optimize")
    words = document.get("cli_args") if isinstance(document, dict) else None
    if not isinstance(words, list):
        raise ConfigError(
            f"{path} has no cli_args; give a result of blis-jax optimize in which a point did not fail"
        )
    try:
        return config_from_arguments([str(word) for word in words])
    except ConfigError as error:
        raise ConfigError(f"{path}: cli_args: {error}") from None


def settings_of(config: ClusterConfig) -> dict[str, Any]:
    """Return the settings that differ from the defaults, as JSON has them."""
    default = ClusterConfig()
    values = {name: getattr(config, name) for name in FIELDS}
    return {
        name: plain_value(value)
        for name, value in values.items()
        if value != getattr(default, name)
    }


def settings_anywhere(config: ClusterConfig) -> dict[str, Any]:
    """Return `settings_of` with absolute paths of users' files, so that a result holds in any folder."""
    return {
        name: with_absolute_files(value) if isinstance(value, str) else value
        for name, value in settings_of(config).items()
    }


def policy_files(config: ClusterConfig) -> dict[str, str]:
    """Return the users' files that a configuration names: absolute paths, with the SHA-256 of their content."""
    texts = [value for name in FIELDS if isinstance(value := getattr(config, name), str)]
    files = {str(path): path for text in texts for path in files_in(text).values()}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


def configured(
    where: str,
    space: Space,
    name: str | None,
    parameters: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> ClusterConfig:
    """Return a strategy at a named point, with parameters and settings replaced; `where` begins error messages."""
    points = space.strategy.points
    if name is not None and name not in points:
        has = ", ".join(points) or "none"
        raise ConfigError(
            f"{where}: point {name!r} is unknown; the strategy has {has}{closest(name, points)}"
        )
    values = dict(points[name]) if name is not None else {}
    for parameter, value in parameters.items():
        values[parameter] = _checked(where, space, parameter, value)
    try:
        config = space.config_with(values) if values else space.base
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    ours_by_name = _ours(where, settings)
    on_gpu = space.strategy.settings_on(str(ours_by_name.get("hardware", "")))
    on_gpu = {name: value for name, value in on_gpu.items() if name not in ours_by_name}
    made = with_settings(where, with_settings(where, config, on_gpu), settings, space.names)
    if SCORERS in ours_by_name and not (made.scorers() or made.decode_scorers()):
        raise ConfigError(
            f"{where}: {SCORERS} weigh the scorers of routing_policy=weighted, and the router "
            f"{made.routing_policy!r} has none; give routing_policy=weighted too"
        )
    return made


def _ours(where: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return ours(settings)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _checked(where: str, space: Space, name: str, value: Any) -> Any:
    """Return a parameter's value converted to the parameter's type, because YAML reads 1e-4 as a text."""
    if name not in space.names:
        has = ", ".join(space.names) or "none"
        raise ConfigError(
            f"{where}: parameter {name!r} is unknown; the strategy has {has}"
            f"{closest(name, space.names)}"
        )
    dimension = space.dimensions[space.names.index(name)]
    if dimension.kind == "categorical":
        if repr(value) not in map(repr, dimension.categories):
            allowed = ", ".join(map(repr, dimension.categories))
            raise ConfigError(f"{where}: parameter {name}: got {value!r}, allowed is {allowed}")
        return value
    try:
        number = value if isinstance(value, int | float) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    is_whole = math.isfinite(number) and number == int(number)
    if isinstance(value, bool) or not (is_whole or math.isfinite(number)):
        raise ConfigError(f"{where}: parameter {name}: got {value!r}, allowed is a number")
    if dimension.kind == "integer":
        if not is_whole:
            raise ConfigError(
                f"{where}: parameter {name}: got {value!r}, allowed is a whole number"
            )
        return int(number)
    return number


def with_settings(
    where: str, config: ClusterConfig, settings: Mapping[str, Any], parameters: Sequence[str] = ()
) -> ClusterConfig:
    """Return a configuration with settings, or single scorers' weights, replaced; `where` begins error messages.

    `parameters` are further names to suggest for an unknown name.
    """
    changes: dict[str, Any] = {}
    written, settings = settings, _ours(where, settings)
    before = weights_of(config.scorers())
    weights: dict[str, Any] = dict(before)
    for name, value in settings.items():
        setting, dot, scorer = today(name).partition(".")
        if dot and setting == SCORERS and scorer in weights:
            weights[scorer] = value
        elif is_setting(name):
            changes[name] = converted(name, value)
        else:
            known = (*parameters, *(f"{SCORERS}.{scorer}" for scorer in weights))
            of_policy = f"; a policy's number has its kind before it, such as routing.{name}"
            raise ConfigError(
                f"{where}: {name!r} is neither a parameter of the strategy nor a setting"
                f"{nearest_setting(name, known) or of_policy * (not dot)}"
            )
    if weights != before:
        if SCORERS in changes:
            raise ConfigError(f"{where}: {SCORERS} is given with single weights; give one")
        changes[SCORERS] = with_weights(config.scorers(), weights)
        try:
            parse_scorers(changes[SCORERS])
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
    try:
        return replaced(config, changes)
    except ConfigError as error:
        raise ConfigError(f"{where}: {as_written(str(error), written)}") from None


def key_of(config: ClusterConfig) -> str:
    """Return a hash of sixteen digits, equal for equal configurations."""
    return fingerprint(values_for_hash(config))
