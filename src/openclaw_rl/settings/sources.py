"""Read the three sources of settings: a file, the environment, the command line.

Each source becomes dotted keys with their origin. Two names of a setting that disagree within one source are an error;
between sources, the later one wins. All errors of a source are reported together.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from openclaw_rl.errors import ConfigError
from openclaw_rl.settings import aliases, strict_yaml, suggestions
from openclaw_rl.settings.schema import SECRETS

_ENVIRONMENT = "environment"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenValue:
    """One setting value and its origin. `weak`: any other value of the same setting overrides it."""

    value: Any
    source: str
    weak: bool = False


@dataclass(slots=True)
class SettingsSource:
    """The settings of one source. Errors are collected and raised by `close`."""

    keys: frozenset[str]  # all known settings
    prefix: str  # "environment", "flags", or the file's name
    # Settings of type text, for a source without types; None: the source has types.
    text: frozenset[str] | None = None
    found: dict[str, GivenValue] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def add_setting(self, name: str, value: Any, *, shown: str | None = None) -> None:
        """Add a setting under any of its names. `shown`: the name as the user wrote it."""
        source = f"{self.prefix}: {shown or name}"
        renamed = aliases.current_key(name)
        if renamed != name:
            self.notices.append(f"{source} is called {renamed} now: rename it")
            name = renamed
        if name in self.keys:
            self._store_value(name, GivenValue(value=value, source=source))
            return
        alias = aliases.all_aliases().get(name)
        if alias is not None:
            self._apply_alias(alias, value, source)
            return
        inner = self._key_below(name)
        if inner:
            fault = (
                f"{source} is a section: expected keys below it, such as {inner}, got {value!r}."
            )
        else:
            fault = f"{self.prefix}: unknown setting {shown or name!r}.{self._suggestion(name)}"
        self.faults.append(fault)

    def close(self) -> dict[str, GivenValue]:
        """Return the settings found. Raises `ConfigError` with all errors, one per line."""
        if self.faults:
            raise ConfigError("\n".join(self.faults))
        return self.found

    def _apply_alias(self, alias: aliases.SettingAlias, value: Any, source: str) -> None:
        """Add the settings that an alias means, or a fault."""
        if alias.refused:
            self.faults.append(f"{source} is refused: {alias.refused}.")
            return
        try:
            value_by_key = alias.read(value)
        except ValueError as error:
            self.faults.append(f"{source}: {error}.")
            return
        self.notices += alias.notices(value)
        for key, one in value_by_key.items():
            if key not in self.keys:
                raise AssertionError(f"{alias.name} means {key}, which is no setting")
            is_weak = alias.weak or key in alias.yields
            self._store_value(key, GivenValue(value=one, source=source, weak=is_weak))

    def _store_value(self, key: str, new: GivenValue) -> None:
        """Add a setting, or a fault if its value is wrong or contradicts an earlier one."""
        if self.text is not None and isinstance(new.value, str):
            try:
                new = replace(new, value=self._parse_typed(key, new))
            except ConfigError as error:
                self.faults.append(str(error))
                return
        earlier = self.found.get(key)
        if earlier is None or earlier.weak:
            self.found[key] = new
        elif not new.weak:
            self._check_agreement(key, earlier, new)

    def _check_agreement(self, key: str, earlier: GivenValue, new: GivenValue) -> None:
        if _normalize_value(earlier.value) != _normalize_value(new.value):
            one = f"{earlier.source}{_format_given(key, earlier)}"
            other = f"{_name_in_source(new.source)}{_format_given(key, new)}"
            self.faults.append(f"{one} and {other} both set {key} and disagree. Unset one.")

    def _parse_typed(self, key: str, setting: GivenValue) -> Any:
        assert self.text is not None, "only text sources are parsed"
        if key in self.text:
            return None if setting.value == "null" else setting.value
        return read_value(setting.value, setting.source)

    def _key_below(self, name: str) -> str:
        """Return a key below the section `name`, or an empty string if it is not a section."""
        return next(
            (n for n in (*sorted(self.keys), *aliases.by_form("file")) if n.startswith(f"{name}.")),
            "",
        )

    def add_empty_section(self, name: str) -> None:
        """Handle a section without keys: an error only if there is no such section."""
        if not self._key_below(name):
            self.add_setting(name, None)

    def _suggestion(self, name: str) -> str:
        if name.startswith("--"):
            flags = suggestions.suggest_flag(name, self.keys)
            return flags or " `--set KEY=VALUE` sets any setting."
        if self.prefix == "environment":
            variables = [*aliases.by_form("environment"), *map(long_name, self.keys)]
            near = difflib.get_close_matches(name, variables, 1, 0.6)
            return f" Did you mean {near[0]}?" if near else ""
        key = self._nearest_key(name)
        if key is None:
            return " `openclaw-rl config show` lists the settings."
        return f" Did you mean {key!r}?"

    def _nearest_key(self, name: str) -> str | None:
        """Return the setting, or the alias in a file, whose name or last part is near; None if no name is near."""
        names = [*sorted(self.keys), *aliases.by_form("file")]
        leaf = _leaf(name)
        near = (
            difflib.get_close_matches(name, names, 1, 0.8)
            or suggestions.settings_meant(leaf, self.keys)
            or difflib.get_close_matches(name, names, 1, 0.5)
            or difflib.get_close_matches(leaf, list(map(_leaf, names)), 1, 0.5)
        )
        for key in names:
            if near and near[0] in (key, _leaf(key)):
                return key
        return None


ENV_PREFIX = "OPENCLAW_RL_"
_MAX_SHOWN_CHARS = 60
"""Characters of a value that an error message shows."""


def long_name(key: str) -> str:
    """Return the environment variable of a setting, e.g. OPENCLAW_RL_TRAIN_SEED."""
    return ENV_PREFIX + key.replace(".", "_").upper()


def _leaf(key: str) -> str:
    return key.rpartition(".")[2]


def _name_in_source(source: str) -> str:
    return source.partition(": ")[2]


def _format_given(key: str, setting: GivenValue) -> str:
    """Return the value in parentheses, or an empty string for secrets."""
    value = setting.value
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return "" if key in SECRETS else f" ({_shorten(text)})"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}..."


def _normalize_value(value: Any) -> Any:
    """Normalize a value for comparison: 1e-6 equals "1e-6", and (0, 1) equals [0, 1]."""
    if isinstance(value, list | tuple):
        return tuple(map(_normalize_value, value))
    try:
        return value if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return value


def read_value(text: str, source: str) -> Any:
    """Parse one value as YAML. Raises `ConfigError` that names `source`."""
    try:
        return strict_yaml.read_yaml(text)
    except ValueError as error:
        shown = _shorten(text)
        raise ConfigError(
            f"{source}: expected a value such as 8, true or [a, b], got {shown!r} ({error})"
        ) from None


def from_file(path: str | Path, keys: Iterable[str]) -> SettingsSource:
    """Read a YAML or JSON file. Raises `ConfigError` that names the file if it cannot be read."""
    file = Path(path)
    text = _read_text(file)
    is_json = file.suffix.lower() == ".json"
    try:
        tree = strict_yaml.read_json(text) if is_json else strict_yaml.read_yaml(text)
    except ValueError as error:
        kind = "JSON" if is_json else "YAML"
        raise ConfigError(f"{file}: cannot be read as {kind}: {error}") from None
    if tree is not None and not isinstance(tree, dict):
        raise ConfigError(
            f"{file}: expected a mapping of sections (model, serve, train, ...), got {type(tree).__name__}"
        )
    layer = SettingsSource(frozenset(keys), str(file))
    _add_tree(tree or {}, "", layer)
    return layer


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            f"{file}: no such settings file. Give an existing one with --config, or none."
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{file}: cannot be read ({error.strerror}). Name a settings file, YAML or JSON."
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: expected UTF-8, got other bytes at byte {error.start}. Save it as UTF-8."
        ) from None


def _add_tree(tree: Mapping[Any, Any], prefix: str, layer: SettingsSource) -> None:
    """Add every leaf of `tree`. Known settings are leaves even if their value is a mapping."""
    for key, value in tree.items():
        dotted = f"{prefix}{key}"
        is_setting = dotted in layer.keys
        is_empty = value is None or value == {}
        if is_empty and not is_setting and dotted not in aliases.all_aliases():
            layer.add_empty_section(dotted)
        elif isinstance(value, Mapping) and not is_setting:
            _add_tree(value, f"{dotted}.", layer)
        else:
            layer.add_setting(dotted, value)


_OUR_PREFIX = re.compile(r"^OPENCLAW_(?:RL_)?")
_SERVICE_VARIABLE = re.compile(
    r"SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?"
)
_SERVICE_ADDRESS = re.compile(r"(?:tcp|udp|sctp)://")


def from_environment(
    environ: Mapping[str, str],
    keys: Iterable[str],
    *,
    text: Iterable[str],
    ours: str,
    strict: bool = True,
) -> SettingsSource:
    """Read environment variables. `text`: settings of type text. `ours`: a variable to ignore.

    Empty variables are not set: Docker Compose passes `${PORT:-}` so. Variables that Kubernetes sets for a Service
    named `openclaw` or `openclaw-rl` are not settings. Flags in LORA_ARGS mean LoRA, unless a variable says otherwise.
    Without `strict`, variables that are refused or wrong are ignored, unless their name begins with OPENCLAW_: they may
    be those of another program.
    """
    layer = SettingsSource(frozenset(keys), _ENVIRONMENT, text=frozenset(text))
    long = {long_name(key): key for key in layer.keys}
    short = aliases.by_form("environment")
    for name, value in environ.items():
        if not value.strip() or _is_of_kubernetes(name, value):
            continue
        faults = len(layer.faults)
        if name in aliases.ARGUMENTS:
            _add_flags(layer, value, shown=f"{name} ")
        elif name in long:
            layer.add_setting(long[name], value, shown=name)
        elif name in short or (name.startswith(ENV_PREFIX) and name != ours):
            layer.add_setting(name, value)
        if not strict and not name.startswith("OPENCLAW_"):
            del layer.faults[faults:]
    if environ.get("LORA_ARGS", "").strip() and "train.finetune" not in layer.found:
        layer.add_setting("train.finetune", "lora", shown="LORA_ARGS")
    return layer


def _is_of_kubernetes(name: str, value: str) -> bool:
    """Whether Kubernetes sets this variable in each container, for a Service of our name.

    https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables
    """
    rest = _OUR_PREFIX.sub("", name)
    if rest == name:
        return False
    if rest == "PORT":
        return _SERVICE_ADDRESS.match(value) is not None
    return _SERVICE_VARIABLE.fullmatch(rest) is not None


def is_foreign(setting: GivenValue) -> bool:
    """Return whether the value is of a variable that may be that of another program."""
    origin, _, name = setting.source.partition(": ")
    return origin == _ENVIRONMENT and not name.startswith("OPENCLAW_")


def from_flags(
    arguments: Sequence[str], keys: Iterable[str], *, text: Iterable[str]
) -> SettingsSource:
    """Read command line flags such as `--lr 1e-6 --use-lora`."""
    layer = SettingsSource(frozenset(keys), "flags", text=frozenset(text))
    _add_flags(layer, arguments)
    return layer


def _split_shell(text: str) -> list[str]:
    """Split like a shell; a backslash at the end of a line joins it with the next."""
    return shlex.split(re.sub(r"\\\r?\n", " ", text))


def _add_flags(layer: SettingsSource, arguments: Sequence[str] | str, *, shown: str = "") -> None:
    try:
        parts = _split_shell(arguments) if isinstance(arguments, str) else list(arguments)
        pairs = aliases.split_flags(parts)
    except ValueError as error:
        fault = f"{error}."
        if shown:
            fault = f"{layer.prefix}: {shown.strip()}: {error}, in {arguments!r}."
        layer.faults.append(fault)
        return
    for name, value in pairs:
        alias = aliases.all_aliases().get(name)
        is_switch = alias is None or alias.switch
        if value is True and not is_switch:
            layer.faults.append(f"{layer.prefix}: {shown}{name} needs a value: {name} VALUE.")
        else:
            layer.add_setting(name, value, shown=f"{shown}{name}")
