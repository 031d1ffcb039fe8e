"""Evaluation programs of others, unmodified, on one version of the home: lm-eval and inspect_ai.

They ask the gateway for `model@N`, so that the model does not change meanwhile, as side traffic.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from openclaw_rl.errors import ConfigError
from openclaw_rl.evals.versions.gateway_access import (
    GatewayAccess,
    check_known,
    check_versions,
    open_gateway,
)
from openclaw_rl.settings.load import Config, foreign_environment

# Of lm-eval, and of inspect_ai for the service "openclaw".
_KEY_VARIABLES = ("OPENAI_API_KEY", "OPENCLAW_API_KEY")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationHarness:
    """An evaluation program. `requirement`: for pip; `arguments`: of (gateway, model name, task, folder of results)."""

    program: str
    requirement: str
    arguments: Callable[[GatewayAccess, str, str, Path], list[str]]

    def find_program(self, chosen: str | None) -> str:
        """Return the path of the program. Raises `ConfigError` if it is not installed."""
        program = shutil.which(chosen or self.program)
        if program is None:
            raise ConfigError(
                f"{chosen or self.program}: there is no such program. Install it, best in an environment of its own: "
                f"pip install {self.requirement}. Then name it with --program PATH, or put its folder on PATH."
            )
        return program


def _lm_eval_arguments(access: GatewayAccess, model: str, task: str, folder: Path) -> list[str]:
    where = f"model={model},base_url={access.url}/v1/chat/completions,num_concurrent=4"
    return [
        *(
            "run",
            "--model",
            "local-chat-completions",
            "--model_args",
            where,
            "--apply_chat_template",
        ),
        *("--gen_kwargs", "turn_type=side", "--tasks", task, "--output_path", str(folder)),
    ]


def _inspect_arguments(access: GatewayAccess, model: str, task: str, folder: Path) -> list[str]:
    file, at, name = task.partition("@")
    # Inspect refuses absolute paths.
    if Path(file).is_file():
        task = f"{os.path.relpath(file)}{at}{name}"
    return [
        *(
            "eval",
            task,
            "--model",
            f"openai-api/openclaw/{model}",
            "--model-base-url",
            f"{access.url}/v1",
        ),
        *(
            "--extra-headers",
            json.dumps({"X-Turn-Type": "side"}),
            "--log-dir",
            str(folder),
            "--display",
            "plain",
        ),
    ]


LM_EVAL = EvaluationHarness(
    program="lm-eval", requirement="'lm-eval[api]'", arguments=_lm_eval_arguments
)
INSPECT = EvaluationHarness(
    program="inspect", requirement="inspect_ai openai", arguments=_inspect_arguments
)


def run_harness(
    harness: EvaluationHarness,
    config: Config,
    task: str,
    *,
    version: str,
    program: str | None,
    out: Path | None,
    more: Sequence[str],
    yes: bool = False,
) -> tuple[int, Path]:
    """Run the program on a version of the home. Returns its exit code and the folder of its results.

    `out`: default `<home>/evaluations/PROGRAM-vN`; `more`: further arguments of the program; `yes`: as for
    `SubprocessSystem`. Raises `ConfigError` if the program is not installed or the version cannot be served, and
    `OpenClawError` if the gateway does not start.
    """
    executable = harness.find_program(program)
    check_known(config, [version])
    with open_gateway(config, yes=yes) as access:
        number = access.resolve(version)
        model = access.pinned(number)
        asyncio.run(check_versions(access, [model]))
        folder = (out or config.home_dir / "evaluations" / f"{harness.program}-v{number}").resolve()
        command = [executable, *harness.arguments(access, model, task, folder), *more]
        keys = dict.fromkeys(_KEY_VARIABLES, access.key)
        return subprocess.run(
            command, env=foreign_environment(keys, loads_models=True), check=False
        ).returncode, folder
