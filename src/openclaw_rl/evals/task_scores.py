"""Score a checkpoint on the evaluation tasks, served from a temporary home.

Replies are greedy, so the same checkpoint gets the same score.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.evals.plots import markdown
from openclaw_rl.evals.tasks import SETS, Task
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.subprocess_system import System, post
from openclaw_rl.supervisor.supervisor import free_port

_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """Result of one task. `wrong`: why it failed, None if solved. `answered`: whether there was a reply."""

    kind: str
    name: str
    reply: str
    wrong: str | None
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    model: str
    tasks: Sequence[Scored]

    @property
    def answered(self) -> bool:
        """Whether at least one task got a reply."""
        return any(one.answered for one in self.tasks)

    def score(self, kind: str) -> tuple[int, int]:
        """Return (solved, total) for one kind of task."""
        mine = [one for one in self.tasks if one.kind == kind]
        return sum(one.wrong is None for one in mine), len(mine)


def evaluate(config: Config, kinds: Sequence[str], *, num: int | None = None) -> Result:
    """Serve `model.path` and score it. `num`: maximum number of tasks per kind.

    Raise `ConfigError` for an unknown kind, `OpenClawError` if the model cannot be served.
    """
    wanted = list(dict.fromkeys(kind.strip() for kind in kinds))
    if unknown := [kind for kind in wanted if kind not in SETS]:
        raise ConfigError(f"--eval-tasks {','.join(unknown)}: expected some of {', '.join(SETS)}")
    with (
        tempfile.TemporaryDirectory(prefix="openclaw-eval-") as home,
        System(_own(config, home), command="serve") as up,
    ):
        asked = [(kind, task) for kind in wanted for task in SETS[kind]()[:num]]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            scored = list(pool.map(lambda one: _one(up, *one), asked))
    return Result(model=config.model.path, tasks=scored)


def _own(config: Config, home: str) -> Config:
    serve = config.serve.model_copy(update={"port": free_port(), "host": "127.0.0.1"})
    return config.model_copy(update={"home": home, "serve": serve, "data": type(config.data)()})


def _one(up: System, kind: str, task: Task) -> Scored:
    body = {
        "model": up.config.model.name,
        "messages": list(task.messages),
        "max_tokens": task.most,
        "temperature": 0,
        **({"tools": list(task.tools)} if task.tools else {}),
    }
    try:
        message = post(up, "/v1/chat/completions", body)["choices"][0]["message"]
    except OpenClawError as error:  # e.g. a model without tool support: a failed task, not an abort
        return Scored(kind=kind, name=task.name, reply="", wrong=str(error), answered=False)
    shown = json.dumps({k: message[k] for k in ("content", "tool_calls") if message.get(k)}, ensure_ascii=False)
    return Scored(kind=kind, name=task.name, reply=shown, wrong=task.check(message), answered=True)


def _kinds(result: Result) -> list[str]:
    return list(dict.fromkeys(one.kind for one in result.tasks))


def table(result: Result) -> str:
    """Return a Markdown table with a row per kind of task."""
    scores = [(kind, *result.score(kind)) for kind in _kinds(result)]
    return markdown(("tasks", "solved", "of", "share"), [(k, s, n, f"{s / n:.2f}") for k, s, n in scores])


def write(result: Result, file: Path) -> None:
    """Write a JSON file with the scores, and each task with its reply and why it failed."""
    scores = {kind: dict(zip(("solved", "of"), result.score(kind), strict=True)) for kind in _kinds(result)}
    told = {"model": result.model, "scores": scores, "tasks": [asdict(one) for one in result.tasks]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
