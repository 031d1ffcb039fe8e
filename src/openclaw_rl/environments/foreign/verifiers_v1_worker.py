"""Plays environments of verifiers 0.4 (`verifiers.v1`) under the user's Python. See `request_loop`.

An episode is `Env.run_slot` of an environment of its own: its timeouts, limit of replies and servers are its own, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import itertools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from request_loop import (
    ForeignRefusal,
    content_digest,
    module_digest,
    page_of_tasks,
    serve_requests,
)
from scripted_model import MODEL_NAME, ScriptedModel
from verifiers_worker import NO_ANSWER, SCORING_SHARE

CHAT_HARNESS = "null"
"""The library's own chat program: it has the tools of the task, and runs no code of the model."""
# What the library takes where the taskset brings none.
CODE_HARNESS = "bash"
LOCAL = {"type": "subprocess"}
# Not set: the key of the episode is a header.
NO_VARIABLE = "OPENCLAW_NO_KEY"
# Of a taskset that is finite.
MANY_TASKS = 100_000

_tasks: dict[str, list[Any]] = {}
# Digest of each taskset.
_codes: dict[str, str] = {}
_prepared: set[str] = set()
_scripted: list[ScriptedModel] = []


def find_taskset(asked: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the library's name of the taskset and its settings. Raises `ForeignRefusal`."""
    vf = importlib.import_module("verifiers")
    if hasattr(vf, "load_environment"):
        raise ForeignRefusal(
            f"verifiers {vf.__version__} is the first generation, for which the source is verifiers. Expected "
            "verifiers 0.4 (`verifiers>=0.4,<0.5`)"
        )
    name = asked["name"]
    if name.endswith(".py") or "/" in name:
        if not Path(name).exists():
            raise ForeignRefusal(
                f"{name}: no such file. Expected a module with a Taskset in __all__, or its name"
            )
        if str(Path(name).parent) not in sys.path:
            sys.path.insert(0, str(Path(name).parent))
        name = Path(name).stem
    return name, {key: value for key, value in asked["args"].items() if key != "tasks"}


def load_tasks(asked: Mapping[str, Any]) -> list[Any]:
    """Return the tasks of a taskset, read once. Raises `ForeignRefusal`."""
    key = json.dumps([asked["name"], asked["args"]], sort_keys=True)
    if key not in _tasks:
        environment = make_environment(asked, 1.0)
        count = asked["args"].get("tasks")
        if count is None and not environment.taskset.bounded:
            raise ForeignRefusal(
                f"{asked['name']} has no end: say how many tasks, e.g. {asked['name']}?tasks=100"
            )
        _tasks[key] = list(
            itertools.islice(environment.taskset, MANY_TASKS if count is None else int(count))
        )
    return _tasks[key]


def make_environment(asked: Mapping[str, Any], seconds: float, replies: int | None = None) -> Any:
    """Return an environment whose only agent is the policy in the library's chat program. Raises `ForeignRefusal`."""
    name, settings = find_taskset(asked)
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    agents = importlib.import_module("verifiers.v1.configs.agent")
    try:
        config = loaders.resolve_env_config({"taskset": {**settings, "id": name}})
    except ModuleNotFoundError as error:
        # The library's own words for a taskset that is not installed.
        if error.name is None:
            raise ForeignRefusal(
                f"no taskset {name!r} in {sys.executable}: install its package there, or give the path of its file"
            ) from None
        raise
    roles = agents.agent_config_fields(config)
    if len(roles) != 1:
        raise ForeignRefusal(
            f"{name} has the agents {', '.join(roles)}. Expected one, which is the policy"
        )
    timeout = {
        "rollout": seconds * (1 - SCORING_SHARE),
        "setup": seconds,
        "scoring": seconds,
        "finalize": seconds,
    }
    agent = {
        "runtime": LOCAL,
        "harness": {"id": choose_harness(name)},
        "timeout": timeout,
        "max_turns": replies,
    }
    environment = loaders.load_environment(
        loaders.resolve_env_config({"taskset": {**settings, "id": name}, next(iter(roles)): agent})
    )
    refuse_unsafe(environment)
    return environment


def choose_harness(name: str) -> str:
    """Return the harness that the taskset brings, else the chat program. Raises `ForeignRefusal`."""
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    harness = str(loaders.default_harness_id(name))
    if harness == CODE_HARNESS:
        return CHAT_HARNESS
    kind = loaders.harness_class(harness)
    if kind.EXECUTES_CODE or kind.NEEDS_CONTAINER:
        raise ForeignRefusal(
            f"the harness of {name} runs code of the model on this machine, or in a container"
        )
    return harness


def refuse_unsafe(environment: Any) -> None:
    """Raise `ForeignRefusal` for tasks that need a container, and for tool servers that run elsewhere."""
    local = importlib.import_module("verifiers.v1.runtimes").runtime_is_local
    kind = type(environment.taskset).task_type()
    config = environment.taskset.config
    if kind.NEEDS_CONTAINER:
        raise ForeignRefusal(
            f"{kind.__name__} needs a container. Tasks in terminals are what the source harbor is for"
        )
    for server in (*type(environment.taskset).toolsets(config), *kind.toolsets(config.task)):
        if not server.config.colocated and not local(server.config.runtime):
            raise ForeignRefusal(
                f"{type(server).__name__} runs in a remote sandbox, which costs money and sends data away. "
                "Expected tool servers on this machine"
            )


async def list_tasks(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the tasks of a taskset. Those that are equal are one."""
    by_digest: dict[str, dict[str, Any]] = {}
    for number, task in enumerate(await asyncio.to_thread(load_tasks, asked)):
        digest = task_digest(asked, task)
        data = {"name": asked["name"], "args": asked["args"], "number": number, "digest": digest}
        by_digest.setdefault(digest, {"id": f"task-{number}", "digest": digest, "data": data})
    return dict(page_of_tasks(list(by_digest.values()), asked["start"]))


def task_digest(asked: Mapping[str, Any], task: Any) -> str:
    """Return the digest of what a task says, without its number, and of the code that scores it."""
    content = task.data.model_dump(mode="json", exclude={"idx"}, exclude_none=True)
    return str(content_digest([code_digest(asked), content]))


def code_digest(asked: Mapping[str, Any]) -> str:
    """Return the digest of a taskset as it was first read: its files, its arguments, and the version of the library."""
    key = json.dumps([asked["name"], asked["args"]], sort_keys=True)
    if key not in _codes:
        name, settings = find_taskset(asked)
        module = importlib.import_module("verifiers.v1.utils.loaders").import_taskset(name).__name__
        version = importlib.import_module("verifiers").__version__
        _codes[key] = content_digest([module_digest(module), settings, version])
    return _codes[key]


async def find_task(data: Mapping[str, Any]) -> Any:
    """Return the task of a request. Raises `ForeignRefusal` if the taskset has changed since it was listed."""
    tasks = await asyncio.to_thread(load_tasks, data)
    task = tasks[data["number"]] if data["number"] < len(tasks) else None
    if task is None or task_digest(data, task) != data["digest"]:
        raise ForeignRefusal(
            "taskset or code are not as when the tasks were listed. If the taskset differs at each start, give it a "
            "seed, e.g. NAME?seed=0"
        )
    return task


async def play_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Play an episode with the ticket's address and key."""
    task = await find_task(asked["data"])
    return {"outcome": await run_task(asked["data"], task, asked, asked.get("replies"))}


async def run_task(
    data: Mapping[str, Any], task: Any, access: Mapping[str, Any], replies: int | None = None
) -> dict[str, Any]:
    """Let the library play a task. `access`: `base_url`, `api_key`, `model` and `seconds`. Return the outcome.

    The library ends the policy's part itself, so that the limit of the whole means that the environment hangs: void.
    """
    v1 = importlib.import_module("verifiers.v1")
    prepare_program()
    client = v1.EvalClientConfig(
        base_url=access["base_url"],
        api_key_var=NO_VARIABLE,
        headers={"x-api-key": access["api_key"]},
    )
    context = v1.ModelContext(model=access["model"], client=client)
    environment = await asyncio.to_thread(make_environment, data, access["seconds"], replies)
    try:
        async with asyncio.timeout(access["seconds"]), environment.serving():
            (slot,) = environment.slots(task)
            return make_outcome(await environment.run_slot(slot, context))
    except TimeoutError:
        return {
            "status": "void",
            "reason": f"the environment or a reward function hung: no end within {access['seconds']:g} s",
        }


def prepare_program() -> None:
    """Let the chat program run under this Python, which has all that it imports; the library would fetch it by uv."""
    from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
    from verifiers.v1.runtimes.subprocess import SubprocessRuntime

    source = CHAT_PROGRAM_SOURCE.encode()
    path = Path(SubprocessRuntime.scripts_dir) / f"{hashlib.sha256(source).hexdigest()}.py"
    if str(path) not in _prepared:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(source)
        SubprocessRuntime._interpreters[str(path)] = sys.executable
        _prepared.add(str(path))


def _void_outcome(episode: Any, trace: Any) -> dict[str, Any]:
    """Return the outcome of an episode that ended with an error, or had no trace."""
    error = episode.last_error or (trace.last_error if trace is not None else None)
    reason = f"{error.type}: {error.message}" if error else "it did not play"
    return {"status": "void", "reason": reason[:1000]}


def make_outcome(episode: Any) -> dict[str, Any]:
    """Return the outcome that an episode of the library means. The end of its time or its replies counts."""
    trace = episode.traces[0] if episode.traces else None
    if not episode.ok or trace is None:
        return _void_outcome(episode, trace)
    unscored = [name for name, reward in trace.rewards.items() if reward is None]
    if unscored or trace.stop_condition in ("setup_timeout", "finalize_timeout", "scoring_timeout"):
        return {
            "status": "void",
            "reason": f"{trace.stop_condition}: no reward {', '.join(unscored)}".strip(),
        }
    parts = {name: reward.value for name, reward in trace.rewards.items()}
    parts |= {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "parts": parts, "reason": trace.stop_condition}


async def check_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Replay the field `answer` of a task in common forms, and a reply without an answer.

    Return as `sources/library_source.py` expects.
    """
    task = await find_task(asked["data"])
    nop = await _run_scripted(asked, task, NO_ANSWER)
    if nop.get("status") == "void":
        return {"reason": f"doing nothing: {nop['reason']}", "checkable": True}
    best = None
    for form in answer_forms(getattr(task.data, "answer", None)):
        outcome = await _run_scripted(asked, task, form)
        if outcome.get("status") == "void":
            return {
                "nop": nop["reward"],
                "reason": f"the known answer: {outcome['reason']}",
                "checkable": True,
            }
        best = outcome["reward"] if best is None else max(best, outcome["reward"])
        if best > nop["reward"] and best >= 1:
            return {"oracle": best, "nop": nop["reward"], "reason": "", "checkable": True}
    what = (
        "it has no answer to replay"
        if best is None
        else f"no form of its answer gets 1 in one reply (got {best:g})"
    )
    return {"oracle": best, "nop": nop["reward"], "reason": what, "checkable": False}


def answer_forms(answer: Any) -> list[str]:
    """Return the known answer as replies; an empty list without an answer."""
    if answer is None or answer == "":
        return []
    return [str(answer), f"<answer>\n{answer}\n</answer>", f"\\boxed{{{answer}}}", f"#### {answer}"]


async def _run_scripted(asked: Mapping[str, Any], task: Any, reply: str) -> dict[str, Any]:
    if not _scripted:
        _scripted.append(ScriptedModel())
    model = _scripted[0]
    access = {
        "base_url": model.base_url,
        "api_key": model.add_replies([reply]),
        "model": MODEL_NAME,
    }
    try:
        return await run_task(asked["data"], task, access | {"seconds": asked["seconds"]})
    finally:
        model.remove_replies(access["api_key"])


if __name__ == "__main__":
    serve_requests({"tasks": list_tasks, "check": check_task, "play": play_task})
