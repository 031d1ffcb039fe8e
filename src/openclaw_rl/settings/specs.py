"""The specs of engines, trainers and judges: `EngineSpec`, `TrainerSpec` and `JudgeSpec`.

A spec is data and functions. Its module must be imported fast: functions import torch or an SDK when they are called.
Everything outside a spec decides by its flags and calls its functions; nothing else compares names.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.methods.types import CreditMethod
from openclaw_rl.protocols import EngineLink, Judge, OnConnect, Trainer
from openclaw_rl.settings.schema import Config
from openclaw_rl.types import Convention

CheckSettings = Callable[[Config], None]
"""Raises `ConfigError` for settings that do not go together."""


def check_nothing(config: Config) -> None:
    """Accept all settings."""


def say_nothing(config: Config) -> str:
    """Return no text."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequiredLibraries:
    """Libraries that must be installed. `purpose`: what needs them; `package`: requirement for pip."""

    purpose: str
    modules: tuple[str, ...]
    package: str


def missing_modules(needed: RequiredLibraries) -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name in needed.modules if not is_installed(name)]


def is_installed(module: str) -> bool:
    """Return whether a module is installed. A folder of that name, such as the `wandb` of W&B, does not count."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None


LibrariesFor = Callable[[Config], Iterable[RequiredLibraries]]


def no_libraries(config: Config) -> Iterable[RequiredLibraries]:
    """Return nothing: beyond this package no library is needed."""
    return ()


TORCH_MODULES = ("torch", "transformers", "safetensors", "psutil", "peft")
TORCH_LIBRARIES = RequiredLibraries(
    purpose="the trainer", modules=TORCH_MODULES, package="openclaw-rl[local]"
)


def torch_libraries(config: Config) -> Iterable[RequiredLibraries]:
    """Return what a trainer needs that reads or writes weights with torch."""
    return (TORCH_LIBRARIES,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConsent:
    """The data that a service gets. The owner agrees once for each address and purpose.

    `service`: its name in messages. `event`: kind of the event that records the yes. `purpose`: what this use is for;
    an engine and a trainer of one service have one event and two purposes. `address`: where it goes, as it is shown
    and recorded. `describe`: returns what is sent for these purposes, in words.
    """

    service: str
    event: str
    purpose: str
    address: Callable[[Config], str]
    describe: Callable[[Config, tuple[str, ...]], str]


@dataclass(frozen=True, slots=True)
class ForeignServer:
    """A server that this system does not start. `cure`: what to do if it does not answer, for messages.

    `pause`: seconds between two health checks, at least.
    """

    url: str
    cure: str
    pause: float = 0.0


def server_at_url(config: Config) -> ForeignServer | None:
    """Return the server at `engine.url`; None if it is not set, and the engine is started here."""
    if config.engine.url is None:
        return None
    return ForeignServer(url=config.engine.url, cure="Start it, or correct engine.url")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """An engine by its name, the value of `engine.backend`.

    Functions: `connect` returns a client; `run` is the engine's process, which ends at SIGTERM and with its parent.
    `check_start` raises `EngineError` or `ConfigError` if the engine cannot start, in at most `wait` seconds for an
    endpoint that does not answer. `check_settings` and `check_beside_trainer` raise `ConfigError`: for settings that
    contradict each other, and for a trainer whose versions it cannot serve. `find_server` returns the server that is
    not started here. `libraries` returns what must be installed.

    Diagnosis: `alternatives` are engines to propose if this one does not start, `repair` says where to read more.
    `settings`: keys that only some engines read; by default, all of `section`.
    """

    name: str
    summary: str
    connect: Callable[[Config, OnConnect | None], EngineLink]
    run: Callable[[Config], None]
    check_start: Callable[[Config, float], None]
    check_settings: CheckSettings = check_nothing
    check_beside_trainer: CheckSettings = check_nothing
    find_server: Callable[[Config], ForeignServer | None] = server_at_url
    libraries: LibrariesFor = no_libraries
    consent: ServiceConsent | None = None
    section: str | None = None
    settings: tuple[str, ...] = ()
    alternatives: tuple[str, ...] = ()
    repair: str = ""
    convention: Convention = "scaled"
    """Of its log-probabilities, unless `engine.logprob_convention` says another."""
    experimental: bool = False
    """Whether it never ran with its real counterpart."""
    runs_here: bool = False
    """Whether it computes on machines of the owner, so that replies cost nothing and its weights are files here."""
    in_process: bool = False
    """Whether its process loads the weights with torch."""
    is_service: bool = False
    """Whether it is a service elsewhere, to which texts are sent: the doctor sends it nothing."""
    starts_before_consent: bool = True
    """Whether `check_start` sends nothing, so that it may run before the owner agrees."""
    loads_versions: bool = True
    """Whether every engine of this kind serves trained versions side by side."""
    loads_adapters: bool = True
    """Whether it loads the adapters that trainers other than its own write."""
    loads_judge: bool = False
    """Whether a second one can be started for the judge's own model."""
    takes_trainer_weights: bool = False
    """Whether a trainer can load its weights into the server by itself (`engine.weights: trainer`)."""
    reads_states: bool = False
    """Whether its client is a `StateEngine`, by which a judge reads the hidden states of the base."""

    @property
    def title(self) -> str:
        """The name in messages: that of the service, if it is one."""
        return self.consent.service if self.consent else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerSpec:
    """A trainer by its name, the value of `train.trainer`.

    Functions: `create` returns the trainer for the base model in a folder; it may load the model. `check_start` raises
    `OpenClawError` if the trainer cannot start, `check_settings` `ConfigError` for settings that contradict each other.
    `libraries` returns what must be installed. `settings` and `repair`: as for `EngineSpec`.
    """

    name: str
    summary: str
    create: Callable[[Config, CreditMethod, Path], Trainer]
    check_start: CheckSettings = check_nothing
    check_settings: CheckSettings = check_nothing
    libraries: LibrariesFor = no_libraries
    consent: ServiceConsent | None = None
    section: str | None = None
    settings: tuple[str, ...] = ()
    repair: str = ""
    required_metrics: tuple[str, ...] = ()
    """Metrics without which the gate refuses a step."""
    experimental: bool = False
    """Whether it never ran with its real counterpart."""
    is_service: bool = False
    """Whether it is a service elsewhere, to which texts are sent: the doctor sends it nothing."""
    needs_weights: bool = True
    """Whether the weights of the base model must be complete on this machine."""
    scores_top_tokens: bool = True
    """Whether it computes log-probabilities of the most likely tokens, from which practice learns."""
    trains_under_lessons: bool = True
    """Whether hints teach it from turns whose prompt had lessons."""
    loads_server: bool = False
    """Whether it can load its weights into a server by itself (`engine.weights: trainer`)."""

    @property
    def title(self) -> str:
        """The name in messages: that of the service, if it is one."""
        return self.consent.service if self.consent else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSpec:
    """A judge by its name, the value of `judge.kind`.

    `create` returns the judge, in the judge's worker; it raises `OpenClawError` if it cannot. `describe` returns what
    judges with these settings, for the lines at the start; empty: the name says it. The other functions are as for
    `TrainerSpec`.
    """

    name: str
    summary: str
    create: Callable[[Config], Judge]
    describe: Callable[[Config], str] = say_nothing
    check_start: CheckSettings = check_nothing
    libraries: LibrariesFor = no_libraries
    consent: ServiceConsent | None = None
    experimental: bool = False
