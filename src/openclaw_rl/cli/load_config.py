"""Load the settings from the options that the commands share."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from openclaw_rl.common.printable import echo_error
from openclaw_rl.settings.cli_options import given_settings

if TYPE_CHECKING:
    from openclaw_rl.settings.load import Config, LoadedSettings


def load_config(**options: Any) -> Config:
    """Return the settings. Takes the arguments of `load_with_sources`."""
    return load_with_sources(**options).config


def load_with_sources(
    *,
    file: str | None,
    sets: tuple[str, ...],
    arguments: tuple[str, ...] = (),
    command: str = "",
    workers: Sequence[str] = (),
    strict: bool = False,
    **flags: Any,
) -> LoadedSettings:
    """Return the settings and the source of each value that is not the default. Prints notices to stderr.

    Without any option, the settings are those that the supervisor passed.
    `command`: a command that starts `workers`; settings that none of them reads get a notice.
    `strict`: for commands that start a system: refuse environment variables of other programs that have no meaning.
    """
    from openclaw_rl.settings import load as settings

    inherited = settings.inherited_config()
    if inherited is not None and not (
        file or sets or arguments or any(v is not None for v in flags.values())
    ):
        return settings.LoadedSettings(config=inherited, sources={}, notices=())
    loaded = load_settings(file=file, sets=sets, arguments=arguments, strict=strict, **flags)
    for notice in _command_notices(loaded, command, workers) if command else loaded.notices:
        echo_error(f"note: {notice}")
    return loaded


def _command_notices(loaded: LoadedSettings, command: str, workers: Sequence[str]) -> list[str]:
    """Return the notices for a command that starts workers. What a judge cannot start with is its preflight's error."""
    from openclaw_rl.settings.unused import unused_by_command
    from openclaw_rl.settings.validate import missing_endpoints
    from openclaw_rl.supervisor.supervisor import with_required_workers

    started = with_required_workers(loaded.config, workers)
    errors = missing_endpoints(loaded.config) if "judge" in started else ()
    notices = [notice for notice in loaded.notices if notice not in errors]
    return notices + unused_by_command(loaded.sources, command, started)


def load_running_config(**options: Any) -> Config:
    """Return the settings for a client of the system that runs on the home."""
    return with_running_gateway(load_config(**options))


def with_running_gateway(config: Config) -> Config:
    """Return the settings with address, model and key of the home's running gateway, if one runs."""
    from openclaw_rl.common.gateway_address import running_address

    address = running_address(config.home_dir)
    if address is None:
        return config
    where = urlsplit(address.url)
    # None: the one in the home.
    key = config.serve.api_key if address.key == "settings" else None
    serve = config.serve.model_copy(
        update={"host": where.hostname, "port": where.port, "api_key": key}
    )
    model = config.model.model_copy(update={"name": address.model, "path": address.model_path})
    return config.model_copy(update={"serve": serve, "model": model})


def home_flag(config: Config) -> str:
    """Return the `--home` flag for a command that is printed; empty if the home is the default."""
    return "" if config.home == type(config)().home else f" --home {shlex.quote(config.home)}"


def load_settings(
    *,
    file: str | None,
    sets: tuple[str, ...],
    arguments: tuple[str, ...] = (),
    strict: bool = True,
    used_sections: tuple[str, ...] = (),
    **flags: Any,
) -> LoadedSettings:
    """Return the settings with their sources and notices.

    `strict`: as for `load_with_sources`; `used_sections`: as for `load_all`.
    """
    from openclaw_rl.settings import load as settings

    return settings.load_all(
        file=file,
        flags=given_settings(flags),
        sets=sets,
        arguments=arguments,
        strict=strict,
        used_sections=used_sections,
    )
