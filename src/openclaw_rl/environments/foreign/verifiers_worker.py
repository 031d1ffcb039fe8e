"""Plays environments of verifiers 0.3 (`load_environment`) under the user's Python. See `request_loop`."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from request_loop import (
    ForeignRefusal,
    content_digest,
    files_digest,
    module_digest,
    page_of_tasks,
    serve_requests,
)
from scripted_model import MODEL_NAME, ScriptedModel

REMOTE_CLASSES = {"SandboxEnv", "SandboxMixin", "OpenEnvEnv"}
"""Classes of the library that run code in a paid remote sandbox."""
HOST_CLASSES = {"MCPEnv"}
"""Classes of the library that start programs on this machine for the model."""
POLICY_ERRORS = {
    "EmptyModelResponseError",
    "OverlongPromptError",
    "ToolError",
    "ToolParseError",
    "ToolCallError",
}
"""Errors that the words of the policy cause: the reward counts."""
SPLITS = {"dataset": "train", "eval_dataset": "held_out"}
# Of the time limit, for scoring what was played when it is over.
SCORING_SHARE = 0.1
# The reply that does nothing.
NO_ANSWER = "I have no answer."

_problems: contextvars.ContextVar[list[str]] = contextvars.ContextVar("problems")
_environments: dict[str, Any] = {}
# Digest of each environment: its code, its arguments, the versions of the libraries.
_codes: dict[str, str] = {}
_tasks: dict[str, list[dict[str, Any]]] = {}
_scripted: list[ScriptedModel] = []


class ProblemHandler(logging.Handler):
    """Keeps the errors of reward functions, which the library logs and counts as 0."""

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if text.startswith(
            ("Error calling reward function", "Error calling group reward function")
        ):
            _problems.get([]).append(text)


def load_environment(asked: Mapping[str, Any]) -> Any:
    """Return the environment `{"name", "args"}`, loaded once. Raises `ForeignRefusal`.

    In the main thread, because the library sets handlers of signals there.
    """
    key = name_key(asked)
    if key not in _environments:
        vf = importlib.import_module("verifiers")
        if not hasattr(vf, "load_environment"):
            raise ForeignRefusal(
                f"verifiers {vf.__version__} has no load_environment: it is the second generation, for which the "
                "source is verifiers-v1. Expected verifiers 0.3 (`verifiers>=0.3.1,<0.4`)"
            )
        if not _environments:
            logging.getLogger("verifiers").addHandler(ProblemHandler())
            vf.Environment.__new__ = staticmethod(make_environment)
        environment = _load_named(vf, asked["name"], asked["args"])
        refuse_groups(environment)
        _codes[key] = content_digest([code_digest(asked["name"]), asked["args"], vf.__version__])
        _environments[key] = environment
    return _environments[key]


def name_key(asked: Mapping[str, Any]) -> str:
    """Return the key of an environment `{"name", "args"}` in this process."""
    return json.dumps([asked["name"], asked["args"]], sort_keys=True)


def code_digest(name: str) -> str:
    """Return the digest of the files of an environment."""
    if is_path(name):
        return str(files_digest(Path(name)))
    return str(module_digest(name.replace("-", "_").split("/")[-1]))


def is_path(name: str) -> bool:
    return name.endswith(".py") or "/" in name


def _load_named(vf: Any, name: str, args: Mapping[str, Any]) -> Any:
    if is_path(name):
        path = Path(name)
        if not path.exists():
            raise ForeignRefusal(
                f"{name}: no such file. Expected a module with load_environment(), or its name"
            )
        sys.path.insert(0, str(path.parent))
        name = path.stem
    # A class of the library; its package has no load_environment.
    if name in ("reasoning-gym", "reasoning_gym"):
        module = importlib.import_module("verifiers.envs.integrations.reasoninggym_env")
        if "gym" not in args:
            raise ForeignRefusal(
                "reasoning-gym: no data set. Expected e.g. verifiers:reasoning-gym?gym=leg_counting"
            )
        return module.ReasoningGymEnv(**args)
    try:
        return vf.load_environment(name, **args)
    except (ValueError, RuntimeError) as error:
        if isinstance(error.__cause__, ForeignRefusal):
            raise error.__cause__ from None
        if isinstance(
            error.__cause__, ModuleNotFoundError
        ) and error.__cause__.name == name.replace("-", "_"):
            raise ForeignRefusal(
                f"no environment {name!r} in {sys.executable}: install its package there, or give the path of its file"
            ) from None
        raise


def make_environment(kind: type, *_: Any, **__: Any) -> Any:
    """Make an environment, before its constructor runs. Raises `ForeignRefusal` for one that is not safe."""
    names = {base.__name__ for base in kind.__mro__}
    if names & REMOTE_CLASSES:
        raise ForeignRefusal(
            f"{kind.__name__} runs its code in a remote sandbox, which costs money and sends data away. "
            "Expected an environment that runs in this process"
        )
    if names & HOST_CLASSES:
        raise ForeignRefusal(
            f"{kind.__name__} starts programs on this machine for the model, without a sandbox. "
            "Expected an environment that runs in this process"
        )
    return object.__new__(kind)


def refuse_groups(environment: Any) -> None:
    """Raise `ForeignRefusal` for an environment that scores the replies of a group together."""
    for one in getattr(environment, "envs", None) or [environment]:
        if one.requires_group_rollouts:
            raise ForeignRefusal(
                f"{type(one).__name__} scores the replies of a group together. Expected a reward of each episode"
            )


async def list_tasks(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the rows of the data sets as tasks: those of the evaluation set are held out."""
    key = name_key(asked)
    if key not in _tasks:
        environment = load_environment(asked)
        _tasks[key] = await asyncio.to_thread(_read_tasks, environment, asked)
    page: dict[str, Any] = page_of_tasks(_tasks[key], asked["start"])
    return page


def _read_tasks(environment: Any, asked: Mapping[str, Any]) -> list[dict[str, Any]]:
    by_digest: dict[str, dict[str, Any]] = {}
    # A row that both have is held out.
    for source in ("eval_dataset", "dataset"):
        rows = _rows_of(environment, source)
        for number, row in enumerate(rows or ()):
            digest = row_digest(asked, row)
            data = {
                "name": asked["name"],
                "args": asked["args"],
                "source": source,
                "row": number,
                "digest": digest,
            }
            task = {"id": f"{SPLITS[source]}-{number}", "digest": digest, "data": data}
            if source == "eval_dataset":
                task["split"] = SPLITS[source]
            by_digest.setdefault(digest, task)
    return list(by_digest.values())


def _rows_of(environment: Any, source: str) -> Any:
    return environment.build_dataset() if source == "dataset" else environment.build_eval_dataset()


def row_digest(asked: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """Return the digest of a row of a loaded environment and of its code. The number of the row is no part of it."""
    code = _codes[name_key(asked)]
    return str(
        content_digest([code, {key: value for key, value in row.items() if key != "example_id"}])
    )


def find_row(environment: Any, data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a task. Raises `ForeignRefusal` if the data set has changed since it was listed."""
    rows = _rows_of(environment, data["source"])
    row = dict(rows[data["row"]]) if rows is not None and data["row"] < len(rows) else {}
    if row_digest(data, row) != data["digest"]:
        raise ForeignRefusal(
            "data set or code are not as when the tasks were listed. If the data set differs at each start, give the "
            "environment a seed, e.g. NAME?seed=0"
        )
    return row


async def play_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Play an episode with the ticket's address and key."""
    environment = load_environment(asked["data"])
    row = find_row(environment, asked["data"])
    access = {"base_url": asked["base_url"], "api_key": asked["api_key"]}
    return {"outcome": await run_row(environment, row, access, asked["model"], asked["seconds"])}


async def run_row(
    environment: Any, row: dict[str, Any], access: Mapping[str, str], model: str, seconds: float
) -> dict[str, Any]:
    """Let the library play a row. Return the outcome.

    The library ends the policy's part itself, so that the limit of the whole means that the environment hangs: void.
    """
    from openai import AsyncOpenAI
    from verifiers.clients import OpenAIChatCompletionsClient

    problems: list[str] = []
    _problems.set(problems)
    playing = seconds * (1 - SCORING_SHARE)
    for one in [environment, *(getattr(environment, "envs", None) or [])]:
        if hasattr(one, "timeout_seconds") and (
            one.timeout_seconds is None or one.timeout_seconds > playing
        ):
            one.timeout_seconds = playing
    async with AsyncOpenAI(**access, max_retries=3, timeout=seconds) as http:
        try:
            async with asyncio.timeout(seconds):
                output = await environment.run_rollout(
                    row,
                    OpenAIChatCompletionsClient(http),
                    model,
                    deepcopy(environment.sampling_args),
                    state_columns=["trajectory"],
                )
        except TimeoutError:
            return {
                "status": "void",
                "reason": f"the environment or a reward function hung: no end within {seconds:g} s",
            }
    return make_outcome(output, problems)


def make_outcome(output: Mapping[str, Any], problems: Sequence[str]) -> dict[str, Any]:
    """Return the outcome that the library's output means. Errors that the policy did not cause are void."""
    error = output.get("error")
    if error and not is_policy_error(error):
        return {"status": "void", "reason": f"{error['error']}: {error['error_chain_repr']}"[:1000]}
    if problems:
        return {"status": "void", "reason": problems[0][:1000]}
    steps = [
        {"turn": step["response"]["id"], "reward": float(step["reward"])}
        for step in output.get("trajectory") or ()
        if step.get("reward") is not None
    ]
    parts = {name: float(value) for name, value in (output.get("metrics") or {}).items()}
    reason = error["message"] if error else output.get("stop_condition")
    return {"reward": float(output["reward"]), "parts": parts, "steps": steps, "reason": reason}


def is_policy_error(error: Mapping[str, str]) -> bool:
    """Return whether the policy caused an error; also the limit of replies, which the gateway reports with 410."""
    return error["error"] in POLICY_ERRORS or "Error code: 410" in error["error_chain_repr"]


async def check_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Replay the answer of a row, in the forms that environments ask for, and a reply without an answer.

    Return `{"oracle", "nop", "reason", "checkable"}`; the reason is empty if the task is fit.
    """
    environment = load_environment(asked["data"])
    row = find_row(environment, asked["data"])
    nop = await _run_scripted(environment, row, NO_ANSWER, asked["seconds"])
    if nop.get("status") == "void":
        return {"reason": f"doing nothing: {nop['reason']}", "checkable": True}
    best = None
    for form in answer_forms(environment, row):
        outcome = await _run_scripted(environment, row, form, asked["seconds"])
        if outcome.get("status") == "void":
            return {
                "nop": nop["reward"],
                "reason": f"the known answer: {outcome['reason']}",
                "checkable": True,
            }
        best = outcome["reward"] if best is None else max(best, outcome["reward"])
        if best > nop["reward"] and best >= environment.pass_threshold:
            return {"oracle": best, "nop": nop["reward"], "reason": "", "checkable": True}
    what = (
        "it has no answer to replay"
        if best is None
        else f"no form of its answer solves it in one reply (got {best:g})"
    )
    return {"oracle": best, "nop": nop["reward"], "reason": what, "checkable": False}


async def _run_scripted(
    environment: Any, row: dict[str, Any], reply: str, seconds: float
) -> dict[str, Any]:
    if not _scripted:
        _scripted.append(ScriptedModel())
    model = _scripted[0]
    key = model.add_replies([reply])
    try:
        access = {"base_url": model.base_url, "api_key": key}
        return await run_row(environment, row, access, MODEL_NAME, seconds)
    finally:
        model.remove_replies(key)


def answer_forms(environment: Any, row: Mapping[str, Any]) -> list[str]:
    """Return the known answer as replies, the form of the environment's parser first. Empty if there is no answer."""
    answer = row.get("answer")
    # reasoning-gym: the row has the number of the entry.
    if hasattr(environment, "rg_dataset"):
        answer = environment.rg_dataset[int(row["answer"])]["answer"]
    if answer is None or answer == "":
        return []
    fields: list[str] = getattr(environment.parser, "get_fields", list)()
    forms = ["".join(f"<{field}>\n{answer}\n</{field}>\n" for field in fields)] if fields else []
    forms += [
        str(answer),
        f"<answer>\n{answer}\n</answer>",
        f"\\boxed{{{answer}}}",
        f"#### {answer}",
    ]
    return forms + [f"<think>\n\n</think>\n\n{form}" for form in forms]


if __name__ == "__main__":
    serve_requests({"tasks": list_tasks, "check": check_task, "play": play_task})
