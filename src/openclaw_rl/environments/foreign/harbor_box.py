"""Classes that Harbor's runner imports: a box of this machine, and Terminus-2 with the ends of an episode.

The owner of the request opens the box and works in it (`call_owner`); nothing here touches a sandbox.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import (
    EnvironmentCapabilities,
    EnvironmentResourceCapabilities,
)
from harbor.llms.lite_llm import LiteLLM
from harbor.models.trial.paths import EnvironmentPaths
from request_loop import call_owner

# The gateway's answer when an episode gets no further reply.
GONE = 410


class BoxEnvironment(BaseEnvironment):  # type: ignore[misc]
    """A box of the owner. It has one user, no network, and the limits of the owner's settings."""

    @staticmethod
    def type() -> str:
        return "openclaw-box"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """A box has no network, whatever the task allows."""
        return EnvironmentCapabilities(disable_internet=True)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """The owner applies memory as a limit, and any number of processors as none."""
        return EnvironmentResourceCapabilities(memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        """Do nothing: the owner reads the definition, and refuses what a box cannot have."""

    async def start(self, force_build: bool) -> None:
        """Open the box with the files of the task."""
        await call_owner({"box": "open"})
        await self._make_log_folders()

    async def stop(self, delete: bool) -> None:
        """Close the box."""
        await call_owner({"box": "close"})

    async def move_to_fresh(self) -> None:
        """Continue in a fresh box, before the tests come into it."""
        await call_owner({"box": "move"})
        await self._make_log_folders()

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await call_owner({"box": "put", "source": str(source_path), "target": str(target_path)})

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.upload_file(source_dir, target_dir)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            await call_owner({"box": "get", "source": str(source_path), "target": str(copy)})
            Path(target_path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(copy, target_path)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "copy"
            await call_owner({"box": "get", "source": str(source_dir), "target": str(copy)})
            shutil.copytree(copy, target_dir, dirs_exist_ok=True)

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command. Every `user` is the one of the box."""
        result = await call_owner(
            {
                "box": "run",
                "command": command,
                "cwd": cwd,
                "env": self._merge_env(env) or {},
                "seconds": timeout_sec,
            }
        )
        # As Harbor's own environments.
        if result["timed_out"]:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
        return ExecResult(
            stdout=result["stdout"], stderr=result["stderr"], return_code=result["exit_code"]
        )

    async def _make_log_folders(self) -> None:
        paths = EnvironmentPaths.for_os(self.os)
        await self.ensure_dirs(
            [paths.agent_dir, paths.verifier_dir, paths.artifacts_dir], chmod=False
        )


class NoFurtherReply(BaseException):
    """Raised if the gateway gives no further reply. Not an `Exception`, because Harbor tries those again."""


class GatewayModel(LiteLLM):  # type: ignore[misc]
    """Harbor's client of models, which knows when an episode is over."""

    has_reply = False

    async def call(self, *args: Any, **options: Any) -> Any:
        reply = await super().call(*args, **options)
        self.has_reply = True
        return reply

    def _handle_litellm_error(self, error: Exception) -> NoReturn:
        if getattr(error, "status_code", None) == GONE:
            raise NoFurtherReply("its limit of replies") from error
        if (
            not self.has_reply
            and getattr(error, "status_code", None) == 400
            and self._is_context_length_error(error)
        ):
            raise NoFurtherReply(
                "the first prompt of the agent does not fit into the context of the policy"
            ) from error
        super()._handle_litellm_error(error)
        raise AssertionError("Harbor raises every error")


class GatewayTerminus(Terminus2):  # type: ignore[misc]
    """Terminus-2, which ends its work when the gateway gives no further reply. `stopped`: why."""

    stopped: str | None = None

    def _init_llm(
        self, *, llm_backend: str, llm_kwargs: dict[str, Any], **options: Any
    ) -> GatewayModel:
        return GatewayModel(**options, **llm_kwargs)

    async def setup(self, environment: BaseEnvironment) -> None:
        lookup = await environment.exec("command -v tmux")
        if lookup.return_code:
            raise RuntimeError(
                "Terminus-2 works in tmux, and a box has the programs of this machine: install tmux"
            )
        await super().setup(environment)

    async def run(self, *args: Any, **options: Any) -> None:
        try:
            await super().run(*args, **options)
        except NoFurtherReply as error:
            self.stopped = str(error)
