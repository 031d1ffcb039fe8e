"""Plays samples of Inspect tasks under the user's Python. See `request_loop`.

The library runs one evaluation at a time in a process, so that each episode is a process of its own: this file with
the argument `episode`, and the request as JSON on stdin.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
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

# The library gives scorers half of the limit; a solver's end is no error.
TIME_LIMIT_ERROR = "Time limit exceeded"
# Of the time limit, for what is not the model's work.
SCORING_SECONDS = 5.0
# The reply that does nothing.
NO_ANSWER = "I have no answer."
# Begin of the line with the outcome of an episode's process.
RESULT = "RESULT "

_tasks: dict[str, list[dict[str, Any]]] = {}
_scripted: list[ScriptedModel] = []


def load_named(name: str, args: dict[str, Any]) -> list[Any]:
    """Return the tasks of a name. The library finds files only below the working folder."""
    from inspect_ai._eval.loader import load_tasks

    file, at, task = name.partition("@")
    if not file.endswith(".py"):
        return list(load_tasks([name], args))
    before = Path.cwd()
    os.chdir(Path(file).parent)
    try:
        return list(load_tasks([f"{Path(file).name}{at}{task}"], args))
    finally:
        os.chdir(before)


def load_task(asked: Mapping[str, Any]) -> Any:
    """Return the task `{"name", "args"}`. Raises `ForeignRefusal`."""
    try:
        tasks = load_named(asked["name"], dict(asked["args"]))
    except (LookupError, FileNotFoundError, ValueError) as error:
        raise ForeignRefusal(
            f"no task {asked['name']!r} ({error}). Expected FILE.py, FILE.py@task, or PACKAGE/task"
        ) from None
    if len(tasks) != 1:
        named = ", ".join(f"{asked['name']}@{task.name}" for task in tasks)
        raise ForeignRefusal(
            f"{asked['name']} has {len(tasks)} tasks: name one of {named or 'those of a file'}"
        )
    if tasks[0].sandbox is not None or any(
        sample.sandbox is not None for sample in tasks[0].dataset
    ):
        raise ForeignRefusal(
            f"{asked['name']} runs the model's commands in a sandbox of its own. Expected a task without one; tasks in "
            "terminals are what the source harbor is for"
        )
    return tasks[0]


def code_digest(asked: Mapping[str, Any]) -> str:
    """Return the digest of a task: its files, its name in them, its arguments, and the version of the library."""
    import inspect_ai

    file, _, task = asked["name"].partition("@")
    is_path = file.endswith(".py") or Path(file).exists()
    files = (
        files_digest(Path(file)) if is_path else module_digest(file.split("/")[0].replace("-", "_"))
    )
    name = task if is_path else file
    return str(content_digest([files, name, asked["args"], inspect_ai.__version__]))


async def list_tasks(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the samples of a task as tasks."""
    key = json.dumps([asked["name"], asked["args"]], sort_keys=True)
    if key not in _tasks:
        by_digest: dict[str, dict[str, Any]] = {}
        dataset = load_task(asked).dataset
        code = code_digest(asked)
        for number, sample in enumerate(dataset, 1):
            name = sample.id if sample.id is not None else number
            digest = str(content_digest([code, sample.model_dump(mode="json", exclude={"id"})]))
            data = {"name": asked["name"], "args": asked["args"], "sample": name, "digest": digest}
            by_digest.setdefault(digest, {"id": f"sample-{name}", "digest": digest, "data": data})
        _tasks[key] = list(by_digest.values())
    return dict(page_of_tasks(_tasks[key], asked["start"]))


async def play_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Play an episode in a process of its own."""
    return {"outcome": await run_process(asked)}


async def run_process(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the outcome of an episode's process. It is killed with its episode."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        __file__,
        "episode",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(asked["seconds"]):
            out, err = await process.communicate(json.dumps(asked).encode())
    except TimeoutError:
        return {
            "status": "void",
            "reason": f"the task or its scorer hung: no end within {asked['seconds']:g} s",
        }
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    lines = [line for line in out.decode(errors="replace").splitlines() if line.startswith(RESULT)]
    if not lines:
        last = err.decode(errors="replace").strip().splitlines()[-1:] or ["no output"]
        return {
            "status": "void",
            "reason": f"the process of the sample ended ({process.returncode}): {last[0]}"[:1000],
        }
    result: dict[str, Any] = json.loads(lines[-1].removeprefix(RESULT))
    return result


def run_episode(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Let the library evaluate a sample in this process. Return the outcome."""
    import inspect_ai
    from inspect_ai.model import get_model

    data = asked["data"]
    folder = Path(asked["folder"])
    model = get_model(
        f"openai-api/gateway/{asked['model']}",
        base_url=asked["base_url"],
        api_key=asked["api_key"],
        memoize=False,
    )
    log = inspect_ai.eval(
        load_task(data),
        model=model,
        sample_id=[data["sample"]],
        epochs=1,
        display="none",
        log_dir=str(folder / "logs"),
        time_limit=max(1, int(asked["seconds"] - SCORING_SECONDS)),
        fail_on_error=False,
        retry_on_error=0,
        score_on_error=True,
        max_retries=3,
        log_realtime=False,
    )[0]
    if log.status != "success" or not log.samples:
        reason = log.error.message if log.error else f"the evaluation ended as {log.status}"
        return {"status": "void", "reason": reason[:1000]}
    return make_outcome(log.samples[0])


def _void_outcome(message: str) -> dict[str, Any]:
    what = "its scorer hung: " if message.startswith(TIME_LIMIT_ERROR) else ""
    return {"status": "void", "reason": f"{what}{message}"[:1000]}


def make_outcome(sample: Any) -> dict[str, Any]:
    """Return the outcome that a sample of a log means. Errors are void, except the limit of replies (410)."""
    is_limit = sample.error is not None and "Error code: 410" in sample.error.message
    if sample.error is not None and not is_limit:
        return _void_outcome(sample.error.message)
    parts = {name: score_number(score.value) for name, score in (sample.scores or {}).items()}
    if not parts and not is_limit and sample.limit is None:
        return {"status": "void", "reason": "the task has no scorer"}
    reason = (
        "its limit of replies" if is_limit else sample.limit and f"its limit: {sample.limit.type}"
    )
    return {"reward": next(iter(parts.values()), 0.0), "parts": parts, "reason": reason}


def score_number(value: Any) -> float:
    """Return a score as a number: C is 1, P 0.5, I and N 0; the mean of several values."""
    from inspect_ai.scorer import value_to_float

    if isinstance(value, Mapping):
        several = list(value.values())
    elif isinstance(value, list):
        several = value
    else:
        several = [value]
    numbers = [float(value_to_float()(one)) for one in several]
    return sum(numbers) / len(numbers) if numbers else 0.0


async def check_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Replay the target of a sample, in three forms, and a reply without an answer."""
    sample = find_sample(asked["data"])
    targets = [sample.target] if isinstance(sample.target, str) else list(sample.target)
    nop = await run_scripted(asked, NO_ANSWER)
    if nop.get("status") == "void":
        return {"reason": f"doing nothing: {nop['reason']}", "checkable": True}
    best = None
    for form in [
        form for target in filter(None, targets[:1]) for form in (target, f"ANSWER: {target}")
    ]:
        outcome = await run_scripted(asked, form)
        if outcome.get("status") == "void":
            return {
                "nop": nop["reward"],
                "reason": f"the target: {outcome['reason']}",
                "checkable": True,
            }
        best = outcome["reward"] if best is None else max(best, outcome["reward"])
        if best >= 1 > nop["reward"]:
            return {"oracle": best, "nop": nop["reward"], "reason": "", "checkable": True}
    what = "it has no target to replay"
    if best is not None:
        what = f"its target as the reply got {best:g}, and doing nothing {nop['reward']:g}"
    return {"oracle": best, "nop": nop["reward"], "reason": what, "checkable": False}


def find_sample(data: Mapping[str, Any]) -> Any:
    """Return the sample of a task. Raises `ForeignRefusal` if it is not there any more."""
    for number, sample in enumerate(load_task(data).dataset, 1):
        if (sample.id if sample.id is not None else number) == data["sample"]:
            return sample
    raise ForeignRefusal(f"no sample {data['sample']!r}: the data set differs at each start")


async def run_scripted(asked: Mapping[str, Any], reply: str) -> dict[str, Any]:
    """Play a sample with a prepared reply."""
    if not _scripted:
        _scripted.append(ScriptedModel())
    model = _scripted[0]
    key = model.add_replies([reply])
    try:
        return await run_process(
            {**asked, "base_url": model.base_url, "api_key": key, "model": MODEL_NAME}
        )
    finally:
        model.remove_replies(key)


if __name__ == "__main__":
    if sys.argv[1:] == ["episode"]:
        result = json.dumps(run_episode(json.load(sys.stdin)))
        sys.stdout.write(f"\n{RESULT}{result}\n")
    else:
        serve_requests({"tasks": list_tasks, "check": check_task, "play": play_task})
