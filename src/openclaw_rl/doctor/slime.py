"""`openclaw-rl doctor --trainer slime`: whether slime, the train worker and slime's router fit together here."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sys
import uuid
from typing import Any

import numpy as np
from rich.text import Text

from openclaw_rl.common.terminal import TerminalConsole
from openclaw_rl.doctor.engine import CheckResult, result_table
from openclaw_rl.engines.remote import server_process, sglang_api
from openclaw_rl.engines.remote.http_client import SGLANG_HEALTH, HttpClient
from openclaw_rl.errors import EngineError
from openclaw_rl.other_trainers.batch_stream import BatchStream, StreamEnded
from openclaw_rl.other_trainers.slime.options import method_problem
from openclaw_rl.settings.load import Config
from openclaw_rl.types import Generation, Sampling

CheckRow = tuple[str, str, CheckResult]
# Not from the folder of the shell: a checkout of OpenClaw-RL has a folder `slime`.
_SELF_CHECK = (
    "import sys; sys.path = [place for place in sys.path if place]; "
    "from openclaw_rl.other_trainers.slime.self_check import print_checks; print_checks()"
)
# Of the router's reply.
_TOKENS = 4


def examine_slime(
    config: Config,
    *,
    python: str | None = None,
    console: TerminalConsole | None = None,
    wait: float = 120.0,
) -> bool:
    """Print a table of the checks. Returns whether every check passes.

    `python`: interpreter of slime's environment; `wait`: seconds that its checks and the router's reply may take.
    """
    console = console or TerminalConsole()
    console.print(Text("openclaw-rl doctor --trainer slime", "bold"))
    rows = [
        *_check_environment(python or sys.executable, wait),
        _check_socket(config),
        _check_router(config, wait),
    ]
    console.print(result_table(rows))
    return all(result.passed for _, _, result in rows)


def _check_environment(python: str, wait: float) -> list[CheckRow]:
    try:
        ran = server_process.run_python(python, _SELF_CHECK, within=wait)
    except EngineError:
        observed = (
            f"{python} cannot be run. Give the Python of slime's environment: --trainer-python PATH"
        )
        return [("environment", "slime's Python runs", CheckResult(observed, False))]
    except TimeoutError as error:
        observed = f"{error} (--wait) and was killed. Find where it hangs: {python} -v -c 'import slime.utils.types'"
        return [("environment", "slime's Python answers", CheckResult(observed, False))]
    if ran.returncode != 0:
        last = ran.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        observed = f"{python}: {last[0]}. Install it there: pip install --no-deps openclaw-rl"
        return [("environment", "slime's Python has openclaw-rl", CheckResult(observed, False))]
    checks = _read_checks(ran.stdout)
    if checks is None:
        observed = f"{python} is no Python. Give that of slime's environment: --trainer-python PATH"
        return [("environment", "slime's Python runs", CheckResult(observed, False))]
    return [(name, expected, CheckResult(text, passed)) for name, expected, passed, text in checks]


def _read_checks(output: bytes) -> list[tuple[str, str, bool, str]] | None:
    """Return the checks in the output; other lines are of slime's modules. None: there are no checks."""
    for line in reversed(output.splitlines()):
        if line.startswith(b'[["'):
            with contextlib.suppress(ValueError):
                checks: list[tuple[str, str, bool, str]] = json.loads(line)
                return checks
    return None


def _check_socket(config: Config) -> CheckRow:
    name = "train worker"
    expected = "answers at trainer.sock in the home"
    try:
        worker = BatchStream.describe_worker(config.home_dir)
    except StreamEnded as error:
        return name, expected, CheckResult(str(error), False)
    method = str(worker["method"])
    trainer = worker["trainer"]
    problem = method_problem(
        method, str(worker["finetune"]), has_teacher=method in ("opd", "combine")
    )
    connected = "waits for slime" if trainer is None else f"the trainer {trainer!r} is connected"
    return (
        name,
        expected,
        CheckResult(problem or f"method {method}, full weights; {connected}", problem is None),
    )


def _check_router(config: Config, wait: float) -> CheckRow:
    name = "router"
    expected = "answers with token ids, log-probabilities and its weight_version"
    if config.engine.url is None:
        observed = (
            "no address. Add --engine-url http://ROUTER:PORT (slime's --sglang-router-ip and -port)"
        )
        return name, expected, CheckResult(observed, False)
    try:
        return (
            name,
            expected,
            asyncio.run(asyncio.wait_for(_ask_router(config, config.engine.url), wait)),
        )
    except (EngineError, TimeoutError) as error:
        reason = str(error) or f"no answer within {wait:g} s"
        observed = f"{reason}. Start slime, and give the address that it prints as router"
        return name, expected, CheckResult(observed, False)


async def _ask_router(config: Config, url: str) -> CheckResult:
    """Ask as the gateway does: a streamed reply."""
    http = HttpClient(url, SGLANG_HEALTH, api_key=config.engine.api_key)
    reply = sglang_api.SglangReplyReader(0)
    ids: list[int] = []
    logprobs: list[float] = []
    try:
        await http.call_json("GET", "/server_info")
        async for events in http.stream_events("/generate", _streaming_body()):
            chunk = reply.read_events(events)
            if chunk is not None:
                ids += chunk.token_ids
                logprobs += chunk.logprobs
    finally:
        await http.close()
    if len(ids) != _TOKENS or not all(math.isfinite(logprob) for logprob in logprobs):
        return CheckResult(
            f"{len(ids)} of {_TOKENS} tokens, log-probabilities {logprobs}: no engine of SGLang",
            False,
        )
    if None in reply.weight_tags:
        return CheckResult("no weight_version in its answers. Use SGLang 0.5.9 or newer", False)
    return CheckResult(
        f"{len(ids)} tokens, weight_version {', '.join(map(str, reply.weight_tags))}", True
    )


def _streaming_body() -> dict[str, Any]:
    asked = Generation(
        id="doctor",
        version=0,
        # In every vocabulary.
        prompt_ids=np.arange(1, 9, dtype=np.int32),
        sampling=Sampling(max_tokens=_TOKENS),
        stop_token_ids=(),
    )
    return sglang_api.streaming_body(
        asked, adapter=None, limit=_TOKENS, rid=f"openclaw-doctor-{uuid.uuid4().hex}"
    )
