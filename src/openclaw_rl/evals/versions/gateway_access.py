"""Access to the gateway of a home, and to the versions that it serves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import aiohttp

from openclaw_rl.common.http.sessions import open_http_session
from openclaw_rl.common.printable import cut_text
from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec
from openclaw_rl.supervisor.home_folder import is_home_locked, prepare_home
from openclaw_rl.supervisor.home_versions import check_version_exists, read_home_key
from openclaw_rl.supervisor.service_consent import require_consent
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, is_ready, read_readiness
from openclaw_rl.supervisor.supervisor import SERVING_WORKERS

# Seconds.
_REPLY_TIMEOUT = 600.0
MAX_VERSION_DIGITS = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAccess:
    """A gateway that answers. `url`: without a path; `model`: the name of its newest version."""

    url: str
    key: str
    model: str

    def pinned(self, version: int) -> str:
        """Return the model name that always means this version."""
        return f"{self.model}@{version}"

    def resolve(self, text: str) -> int:
        """Return the number of a version: `base` is 0, and `head` the one that answers now.

        Raises `ConfigError` for other words. Whether the gateway serves the version, its first reply shows.
        """
        number = read_version(text)
        return int(read_readiness(self.url, self.key)["version"]) if number is None else number


def read_version(text: str) -> int | None:
    """Return the number of a version: 0 for `base`, None for `head`. Raises `ConfigError` for other words."""
    if text in ("head", "base"):
        return None if text == "head" else 0
    if text.isascii() and text.isdigit() and len(text) <= MAX_VERSION_DIGITS:
        return int(text)
    raise ConfigError(
        f"version {cut_text(text, 40)!r}: expected a number, head or base. `openclaw-rl status` shows the versions"
    )


def check_known(config: Config, versions: Sequence[str]) -> None:
    """Raise `ConfigError` if the home has no such version: this is known before a gateway starts."""
    for number in filter(None, map(read_version, versions)):
        check_version_exists(config, number)


def ask_consent(config: Config, *, on_scratch_home: bool, yes: bool) -> None:
    """Ask for what a gateway that `open_gateway` starts sends to a service, before it is opened.

    `on_scratch_home`: whether it is started in any case, because it does not serve the home.
    """
    if engine_spec(config).consent is None:
        return
    if on_scratch_home or not (config.home_dir.exists() and is_home_locked(config)):
        require_consent(config, SERVING_WORKERS, yes=yes)


@contextlib.contextmanager
def open_gateway(
    config: Config, *, owner: Config | None = None, yes: bool = False
) -> Iterator[GatewayAccess]:
    """Yield the gateway of the system that runs on the home. If none runs, one is started until the block ends.

    `config`: with the address of the running gateway, if one runs. A started gateway has a free port of this machine,
    and neither judges nor trains. `owner`, `yes`: as for `SubprocessSystem`. Raises `OpenClawError` if it does not
    start.
    """
    prepare_home(config)
    if is_home_locked(config):
        if not is_ready(config.serve.url, config.serve.api_key):
            raise OpenClawError(
                f"the system on {config.home_dir} is not ready. `openclaw-rl status` shows why. Try again when it is"
            )
        key = read_home_key(config)
        yield GatewayAccess(url=config.serve.url, key=key, model=config.model.name)
        return
    started = SubprocessSystem(on_free_port(config), command="serve", owner=owner, yes=yes)
    with started as system:
        key = read_home_key(system.config)
        yield GatewayAccess(url=system.base_url, key=key, model=config.model.name)


def on_free_port(config: Config) -> Config:
    """Return the settings for a gateway that only this machine reaches, without watched and exported folders."""
    serve = config.serve.model_copy(update={"port": free_port(), "host": "127.0.0.1"})
    return config.model_copy(update={"serve": serve, "data": type(config.data)()})


def open_session(access: GatewayAccess, *, with_lessons: bool = False) -> aiohttp.ClientSession:
    """Return a client whose requests are side traffic.

    `with_lessons`: whether the prompts have the lessons of the key, as people are served.
    """
    headers = {"Authorization": f"Bearer {access.key}", "X-Turn-Type": "side"}
    if with_lessons:
        headers["X-With-Lessons"] = "true"
    return open_http_session(
        access.url, headers=headers, timeout=aiohttp.ClientTimeout(total=_REPLY_TIMEOUT)
    )


async def check_versions(access: GatewayAccess, models: Sequence[str]) -> None:
    """Ask each model for one token. Raises `ConfigError` with the gateway's reason if it does not serve one."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    async with open_session(access) as session:
        for model in models:
            async with session.post(
                "/v1/chat/completions", json=body | {"model": model}
            ) as response:
                if response.status != 200:
                    reason = (await response.json())["error"]["message"]
                    raise ConfigError(f"{model} cannot be evaluated: {reason}")
