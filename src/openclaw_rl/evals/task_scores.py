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

from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import ConfigError, OpenClawError
from openclaw_rl.evals.plots import markdown_table
from openclaw_rl.evals.tasks import TASK_SETS, EvalTask
from openclaw_rl.settings.load import Config
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, post_json

_PARALLEL_TASKS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScore:
    """Result of one task. `wrong`: why it failed, None if solved. `answered`: whether there was a reply."""

    kind: str
    name: str
    reply: str
    wrong: str | None
    answered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    model: str
    tasks: Sequence[TaskScore]

    @property
    def has_replies(self) -> bool:
        """Whether at least one task got a reply."""
        return any(one.answered for one in self.tasks)

    def solved_and_total(self, kind: str) -> tuple[int, int]:
        """Return (solved, total) for one kind of task."""
        mine = [one for one in self.tasks if one.kind == kind]
        return sum(one.wrong is None for one in mine), len(mine)


def evaluate_model(config: Config, kinds: Sequence[str], *, num: int | None = None) -> EvalResult:
    """Serve `model.path` and score it. `num`: maximum number of tasks per kind.

    Raise `ConfigError` for an unknown kind, `OpenClawError` if the model cannot be served.
    """
    wanted = list(dict.fromkeys(kind.strip() for kind in kinds))
    if unknown := [kind for kind in wanted if kind not in TASK_SETS]:
        raise ConfigError(f"--eval-tasks {','.join(unknown)}: expected some of {', '.join(TASK_SETS)}")
    with (
        tempfile.TemporaryDirectory(prefix="openclaw-eval-") as home,
        SubprocessSystem(_scratch_config(config, home), command="serve") as up,
    ):
        asked = [(kind, task) for kind in wanted for task in TASK_SETS[kind]()[:num]]
        with ThreadPoolExecutor(_PARALLEL_TASKS) as pool:
            scored = list(pool.map(lambda one: _score_task(up, *one), asked))
    return EvalResult(model=config.model.path, tasks=scored)


def _scratch_config(config: Config, home: str) -> Config:
    serve = config.serve.model_copy(update={"port": free_port(), "host": "127.0.0.1"})
    return config.model_copy(update={"home": home, "serve": serve, "data": type(config.data)()})


def _score_task(up: SubprocessSystem, kind: str, task: EvalTask) -> TaskScore:
    body = {
        "model": up.config.model.name,
        "messages": list(task.messages),
        "max_tokens": task.max_tokens,
        "temperature": 0,
        **({"tools": list(task.tools)} if task.tools else {}),
    }
    try:
        message = post_json(up, "/v1/chat/completions", body)["choices"][0]["message"]
    except OpenClawError as error:  # e.g. a model without tool support: a failed task, not an abort
        return TaskScore(kind=kind, name=task.name, reply="", wrong=str(error), answered=False)
    shown = json.dumps({k: message[k] for k in ("content", "tool_calls") if message.get(k)}, ensure_ascii=False)
    return TaskScore(kind=kind, name=task.name, reply=shown, wrong=task.check(message), answered=True)


def _task_kinds(result: EvalResult) -> list[str]:
    return list(dict.fromkeys(one.kind for one in result.tasks))


def score_table(result: EvalResult) -> str:
    """Return a Markdown table with a row per kind of task."""
    scores = [(kind, *result.solved_and_total(kind)) for kind in _task_kinds(result)]
    return markdown_table(("tasks", "solved", "of", "share"), [(k, s, n, f"{s / n:.2f}") for k, s, n in scores])


def write_scores(result: EvalResult, file: Path) -> None:
    """Write a JSON file with the scores, and each task with its reply and why it failed."""
    scores = {
        kind: dict(zip(("solved", "of"), result.solved_and_total(kind), strict=True)) for kind in _task_kinds(result)
    }
    content = {"model": result.model, "scores": scores, "tasks": [asdict(one) for one in result.tasks]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
