"""Show the effective settings, check a settings file, and write the reference page.

python -m openclaw_rl.settings.reference docs/reference/settings.md
"""

from __future__ import annotations

import sys
import types
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from openclaw_rl.common.printable import echo
from openclaw_rl.settings import aliases
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.load import Config, LoadedSettings
from openclaw_rl.settings.registry import CHOICES, describe_choices

# Of a list in one line.
_LIST_COLUMNS = 60


def show_settings(loaded: LoadedSettings) -> None:
    """Print every setting as YAML with the source of its value as a comment. Secrets are not shown."""
    for line in setting_lines(loaded):
        echo(line)


def setting_lines(loaded: LoadedSettings) -> Iterator[str]:
    """Yield lines of YAML that `--config` can read."""
    for notice in loaded.notices:
        yield f"# {notice}"
    yield from _section_lines(loaded.config.model_dump(mode="json"), "", loaded)


def _section_lines(tree: dict[str, Any], prefix: str, loaded: LoadedSettings) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    leaves = set(settings.known_keys())
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and key not in leaves:
            yield f"{indent}{name}:"
            yield from _section_lines(value, f"{key}.", loaded)
        elif key in settings.SECRETS and value:
            yield f"{indent}# {name}: (set){_source_comment(key, loaded)}"
        elif isinstance(value, list) and len(_one_line(value)) > _LIST_COLUMNS:
            yield from _long_list_lines(name, value, indent, key, loaded)
        else:
            yield f"{indent}{name}: {_one_line(value)}{_source_comment(key, loaded)}"


def given_lines(loaded: LoadedSettings) -> Iterator[str]:
    """Yield the settings that were given, with their sources, as lines of YAML that `--config` can read."""
    for key, source in sorted(loaded.sources.items()):
        if key in settings.SECRETS:
            yield f"# {key}: (set)  # {source}"
        else:
            value = _one_line(_value_at_json(loaded.config, key))
            yield f"{key}: {value}  # {source}"


def _value_at_json(config: Config, key: str) -> Any:
    """Return the value of a setting as JSON has it."""
    section, _, name = key.rpartition(".")
    holder: BaseModel = _value_at(config, section) if section else config
    return holder.model_dump(mode="json", include={name})[name]


def _one_line(value: Any) -> str:
    """Return a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("...\n").strip()


def _long_list_lines(
    name: str, values: list[Any], indent: str, key: str, loaded: LoadedSettings
) -> Iterator[str]:
    """Yield one line for each value, or one comment for all if they are the default."""
    if key not in loaded.sources:
        yield f"{indent}# {name}: the {len(values)} patterns of assets/client_patterns.yaml"
        return
    yield f"{indent}{name}:{_source_comment(key, loaded)}"
    for value in values:
        yield f"{indent}- " + yaml.safe_dump(value, width=10**6).removesuffix("...\n").strip()


def _source_comment(key: str, loaded: LoadedSettings) -> str:
    source = loaded.sources.get(key)
    return f"  # {source}" if source else ""


def check_file(file: str) -> None:
    """Load only the file and print the settings that it changes. Raises `ConfigError` with all errors."""
    loaded = settings.load_all(file=file, environ={})
    for notice in loaded.notices:
        echo(f"note: {notice}")
    default = Config()
    echo(f"{file}: {len(loaded.sources)} settings")
    for key, source in sorted(loaded.sources.items()):
        value = _value_at(loaded.config, key)
        line = f"  {key}: {'(set)' if key in settings.SECRETS else _format_default(value)}"
        spelled = source.rpartition(": ")[2]
        if spelled != key:
            line += f"  (as {spelled})"
        if value == _value_at(default, key):
            line += "  (the default)"
        echo(line)


def _value_at(config: Config, key: str) -> Any:
    value: Any = config
    for part in key.split("."):
        value = getattr(value, part)
    return value


def reference_page() -> str:
    """Return the text of docs/reference/settings.md: type, default, meaning and aliases of every setting."""
    known = aliases.all_aliases().values()
    parts = [_PREFACE, *_section_tables(Config, "", _other_names()), _OTHERS]
    parts += [f"| `{alias.name}` | {alias.means} |" for alias in known if not alias.keys]
    for key, reasons in aliases.alias_table("refused_values").items():
        parts += [f"| `{key} {value}` | refused: {reason} |" for value, reason in reasons.items()]
    return "\n".join(parts) + "\n"


def _other_names() -> dict[str, list[str]]:
    """Return the aliases of each setting that has some."""
    names: dict[str, list[str]] = {}
    for alias in aliases.all_aliases().values():
        for key in alias.keys:
            names.setdefault(key, []).append(f"`{alias.name}`")
    return names


def _section_tables(
    model: type[BaseModel], prefix: str, also: dict[str, list[str]]
) -> Iterator[str]:
    title = prefix.removesuffix(".") or "the whole"
    about = (model.__doc__ or "").split("\n", maxsplit=1)[0]
    yield f"\n## {title}\n\n{about}\n\n| setting | type | default | meaning | also |\n|---|---|---|---|---|"
    sections: dict[str, type[BaseModel]] = {}
    for name, info in model.model_fields.items():
        key = f"{prefix}{name}"
        kind = info.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            sections[key] = kind
        else:
            yield _setting_row(key, info, also.get(key, ())).replace("\n", " ")
    for key, section in sections.items():
        yield from _section_tables(section, f"{key}.", also)


def _setting_row(key: str, info: FieldInfo, other_names: Sequence[str]) -> str:
    """Return the row of a setting: name, type, default, meaning, other names."""
    type_name = _type_name(info.annotation)
    meaning = info.description or ""
    choices = CHOICES.get(key)
    if choices is not None:
        type_name = " or ".join(f"`{name}`" for name in choices.names())
        meaning += f". {describe_choices(key)}"
    default = _format_default(info.get_default(call_default_factory=True))
    return f"| `{key}` | {type_name} | `{default}` | {meaning} | {', '.join(other_names)} |"


def _type_name(kind: Any) -> str:
    """Return a readable type name, e.g. `number` or `a or b`."""
    origin = typing.get_origin(kind)
    arguments = [one for one in typing.get_args(kind) if one is not type(None)]
    if origin is typing.Literal:
        return " or ".join(f"`{one}`" for one in arguments)
    names = list(map(_type_name, arguments))
    if origin is tuple:
        return f"list of {names[0]}"
    if origin is dict:
        return " to ".join(names)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(names)
    return _TYPE_NAMES.get(kind, str(kind))


_TYPE_NAMES = {str: "text", bool: "true or false", float: "number", int: "whole number"}


def _format_default(value: Any) -> str:
    if isinstance(value, tuple) and len(str(value)) > 80:
        return f"({len(value)} patterns)"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    return str(list(value)) if isinstance(value, tuple) else str(value)


_PREFACE = """# Settings

Generated by `python -m openclaw_rl.settings.reference`; a test compares it with the code.

A flag wins over the environment, the environment over the file (`--config FILE`, YAML or JSON), the file over the
default. Every setting has a flag, `--set KEY=VALUE`, and a variable, `OPENCLAW_RL_` and its name in capitals with `_`
for the dots (`OPENCLAW_RL_TRAIN_SEED`). The last column lists the aliases: variables in capitals, flags with two
dashes, and keys of a file. Alias flags work on `up`, `serve`, `collect`, `judge`, `train`, `rollout`, `evaluate` and
`config show`, and inside the variables `CKPT_ARGS`, `ROLLOUT_ARGS`, `REWARD_ARGS`, `OPTIMIZER_ARGS` and `LORA_ARGS`.
Flags in `LORA_ARGS` also set `train.finetune` to `lora`, unless a variable sets it.
Empty variables are not set, and those that Kubernetes sets for a Service named `openclaw` or `openclaw-rl` are not
read.
`--help` of a command lists its options and the flags of its settings. Commands that read a home (`status`, `inspect`,
`key`, `rollback`, `data export`) take `--home`, `--config` and `--set` only; they find the running system whatever its
port. Two different values for one setting within one source are an error. `openclaw-rl config show` prints the
effective settings and their sources; `openclaw-rl config check FILE` lists all errors of a file."""

_OTHERS = """
## Names with one value, and names that are refused

| name | why |
|---|---|"""


def main() -> None:
    """Write the reference page to the path given as the first argument."""
    Path(sys.argv[1]).write_text(reference_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
