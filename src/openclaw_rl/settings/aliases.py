"""Aliases of settings: environment variables, flags and file keys of other programs, and earlier keys of our own.

The table is `assets/aliases.json`. A name in capitals is an environment variable. A name with two dashes is a flag, on
the command line and inside the variables of `ARGUMENTS`. Any other name is a dotted key of a YAML or JSON file. A name
without a meaning here is refused with the reason and the alternative.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Literal
from urllib.parse import urlsplit

from openclaw_rl.common.assets import ASSETS

ARGUMENTS = ("CKPT_ARGS", "ROLLOUT_ARGS", "REWARD_ARGS", "OPTIMIZER_ARGS", "LORA_ARGS")
"""Environment variables that hold flags, as launch scripts assemble them."""

Form = Literal["environment", "flag", "file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingAlias:
    """One alias. It has `sets`, `reader`, `cases`, `only`, `refused` or `notice`; with `notice`, `reader` only checks.

    `weak`: any other value of the same setting overrides it.
    """

    name: str
    means: str  # for the reference page
    sets: Sequence[str] = ()  # settings that get the value
    also: Mapping[str, Any] = field(default_factory=dict)  # further settings, with their values
    reader: str = ""  # name in `_READERS`
    cases: Mapping[str, Mapping[str, Any]] | None = None  # settings for true and for false
    only: Any = None  # the one accepted value, because the program always behaves that way
    why: str = ""  # the reason for `only`
    refused: str = ""  # the reason, and the alternative
    notice: str = ""  # shown when it is set, because it has no effect by itself
    switch: bool = False  # a flag whose value may be omitted: true
    weak: bool = False
    yields: Sequence[str] = ()  # settings of it that any other value overrides

    @property
    def form(self) -> Form:
        if self.name.startswith("--"):
            return "flag"
        return "environment" if self.name.isupper() else "file"

    def notices(self, value: Any) -> list[str]:
        """Return what is shown when it is set to this accepted value, because it changes nothing."""
        if self.only is not None:
            return [
                f"{self.name} is {_format_value(self.only)}: this is always so, because {self.why}"
            ]
        if self.cases is not None and not self.read(value):
            return [f"{self.name} is {_format_value(value)}: this is the default"]
        return [f"{self.name} is set: {self.notice}"] if self.notice else []

    @property
    def keys(self) -> tuple[str, ...]:
        """The settings that it sets, in the order of its description."""
        named = (
            self.means.split("`")[1::2]
            if not (self.refused or self.notice or self.only is not None)
            else ()
        )
        return tuple(word for word in named if "." in word or word == "home")

    def read(self, value: Any) -> Mapping[str, Any]:
        """Convert a given value to settings. Raises `ValueError` with what was expected."""
        if self.reader:
            return _READERS[self.reader](value)
        if self.cases is not None:
            return self.cases["true" if parse_bool(value) else "false"]
        if self.only is not None:
            self._check_only_value(value)
        return {**self.also, **dict.fromkeys(self.sets, value)}

    def _check_only_value(self, value: Any) -> None:
        parsed = parse_bool(value) if isinstance(self.only, bool) else value
        if parsed != self.only:
            raise ValueError(
                f"expected {_format_value(self.only)}, got {_format_value(value)}: {self.why}"
            )


@cache
def alias_table(name: str) -> Any:
    """Return a table of `assets/aliases.json`: aliases, refused_values or earlier_keys."""
    return json.loads((ASSETS / "aliases.json").read_text(encoding="utf-8"))[name]


@cache
def all_aliases() -> Mapping[str, SettingAlias]:
    """Return all aliases by name."""
    return {
        name: _build_alias(name, **row) for row in alias_table("aliases") for name in row["names"]
    }


def _build_alias(name: str, *, names: Sequence[str], **row: Any) -> SettingAlias:
    if "only" in row:
        means = f"{_format_value(row['only'])} only: {row['why']}"
    elif "refused" in row:
        means = f"refused: {row['refused']}"
    else:
        means = row.get("notice") or " and ".join(f"`{key}`" for key in row.get("sets", ()))
    return SettingAlias(**{"name": name, "means": means} | row)


def by_form(form: Form) -> dict[str, SettingAlias]:
    """Return the aliases of one form by name."""
    return {name: alias for name, alias in all_aliases().items() if alias.form == form}


def refusal_reason(key: str, value: Any) -> str | None:
    """Return why a value known from another program is refused, and the alternative; None if it is not one."""
    reason: str | None = alias_table("refused_values").get(key, {}).get(str(value).lower())
    return reason


def current_key(key: str) -> str:
    """Return the name of today of a key of version 0.1; other keys are returned as they are."""
    name: str = alias_table("earlier_keys").get(key, key)
    return name


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_BOOLS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def parse_bool(value: Any) -> bool:
    """Parse true, false, 1, 0, yes, no, on or off. Raises `ValueError` for anything else."""
    parsed = _BOOLS.get(str(value).strip().lower())
    if parsed is None:
        raise ValueError(f"expected true or false, got {value!r}")
    return parsed


def parse_gpus(value: Any) -> tuple[str, ...]:
    """Parse device ids: `0,1` or [0, 1]. Raises `ValueError`."""
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    ids = tuple(str(part).strip() for part in parts)
    if not all(part.isdigit() for part in ids):
        raise ValueError(f"expected device ids such as 0,1,2,3, got {value!r}")
    if len(set(ids)) < len(ids):
        raise ValueError(f"expected each device once, got {value!r}")
    return ids


def _read_clip_ratio(value: Any) -> Mapping[str, Any]:
    try:
        ratio = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"expected a number, got {value!r}") from None
    if not 0 < ratio < 1:
        raise ValueError(f"expected a ratio between 0 and 1, got {value!r}")
    return {"train.loss.clip_low": 1 - ratio, "train.loss.clip_high": 1 + ratio}


_SIZES = {
    "0.6b": "0.6B",
    "1.7b": "1.7B",
    "4b": "4B",
    "7b": "8B",
    "8b": "8B",
    "14b": "14B",
    "32b": "32B",
}


def _read_model_size(value: Any) -> Mapping[str, Any]:
    size = str(value).lower()
    if size not in _SIZES:
        raise ValueError(
            f"expected one of {', '.join(_SIZES)}, got {value!r}; or name any model with MODEL_PATH"
        )
    return {"model.path": f"Qwen/Qwen3-{_SIZES[size]}"}


def _read_lora_targets(value: Any) -> Mapping[str, Any]:
    """Parse `all-linear` or module names: a list, or one string with commas."""
    if value == "all-linear":
        return {"train.lora.targets": value}
    names = value
    if not isinstance(value, list | tuple):
        names = [part.strip() for part in str(value).split(",")]
    if not names or not all(map(_is_module_name, names)):
        raise ValueError(f"expected all-linear, or names such as q_proj,v_proj, got {value!r}")
    return {"train.lora.targets": names}


def _is_module_name(name: Any) -> bool:
    return isinstance(name, str) and re.fullmatch(r"[\w.-]+", name) is not None


_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1", "0.0.0.0")


def _check_local_endpoint(value: Any) -> Mapping[str, Any]:
    """Accept an address of this machine. Its data are in the home; those of another machine are out of reach."""
    try:
        host = urlsplit(str(value)).hostname
    except ValueError:
        host = None
    if host not in _LOOPBACK_NAMES:
        raise ValueError(
            f"expected an address of this machine, such as http://localhost:8000, got {value!r}: collecting reads what "
            "the gateway of the same home (--home) has stored, and asks no API"
        )
    return {}


def _check_roles(value: Any, *, needed: str, possible: tuple[str, ...]) -> Mapping[str, Any]:
    roles = [value] if isinstance(value, str) else value
    if not isinstance(roles, list | tuple):
        raise ValueError(f"expected a list of roles such as {', '.join(possible)}, got {value!r}")
    is_complete = not needed or needed in roles
    if is_complete and all(role in possible for role in roles):
        return {}
    condition = f", {needed} among them" if needed else ""
    raise ValueError(
        f"expected roles of {', '.join(possible)}{condition}, got {roles}: "
        "only the assistant's own tokens ever train, and what answers them is the reaction"
    )


_READERS: Mapping[str, Callable[[Any], Mapping[str, Any]]] = {
    "clip_ratio": _read_clip_ratio,
    "engine_gpus": lambda value: {"engine.gpus": parse_gpus(value)},
    "local_endpoint": _check_local_endpoint,
    "log_level": lambda value: {"run.log_level": str(value).lower()},
    "lora_targets": _read_lora_targets,
    "model_size": _read_model_size,
    "other_roles": partial(
        _check_roles, needed="", possible=("system", "developer", "tool", "function")
    ),
    "trained_roles": partial(_check_roles, needed="assistant", possible=("user", "assistant")),
    "trainer_gpus": lambda value: {
        "train.gpus": parse_gpus(value),
        "train.ranks": len(parse_gpus(value)),
    },
}


def split_flags(arguments: list[str]) -> list[tuple[str, str | bool]]:
    """Split `--a 1 --b --c=2` into (flag, value). A flag without a value is True. Raises `ValueError`."""
    out: list[tuple[str, str | bool]] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            raise ValueError(f"expected a flag such as --lr 1e-6, got {word!r}")
        name, sign, value = word.partition("=")
        if sign:
            out.append((name, value))
        elif rest and _is_value_of(name, rest[0]):
            out.append((name, rest.pop(0)))
        else:
            out.append((name, True))
    return out


def _is_value_of(flag: str, text: str) -> bool:
    """Return whether the word after a flag is its value. A switch takes none but true or false."""
    if text.startswith("--"):
        return False
    known = all_aliases().get(flag)
    is_switch = known is not None and known.switch
    return not is_switch or text.lower() in _BOOLS
