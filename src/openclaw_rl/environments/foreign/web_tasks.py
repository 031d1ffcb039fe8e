"""Tasks that are a folder of pages with a `task.json`, as tasks of BrowserGym.

    {"goal": "...", "page": "index.html", "done": "JavaScript", "solved": "JavaScript", "oracle": [["click", "#save"]]}

`done` and `solved` are expressions that the open page evaluates. `oracle`: actions; their first argument is a CSS
selector.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from browsergym.core.task import AbstractBrowserTask
from request_loop import ForeignRefusal
from shared_browser import serve_folder

TASK_FILE = "task.json"


def find_web_tasks(folder: Path) -> dict[str, Path]:
    """Return the folders of tasks by name: `folder` itself, or those in it. Raises `ForeignRefusal`."""
    files = (
        [folder / TASK_FILE]
        if (folder / TASK_FILE).exists()
        else sorted(folder.glob(f"*/{TASK_FILE}"))
    )
    if not files:
        raise ForeignRefusal(f"{folder}: no tasks. Expected folders with a {TASK_FILE}")
    return {file.parent.name: file.parent for file in files}


def read_web_task(folder: Path) -> dict[str, Any]:
    """Return the content of `task.json`. Raises `ForeignRefusal` if a field is missing."""
    task: dict[str, Any] = json.loads((folder / TASK_FILE).read_text(encoding="utf-8"))
    missing = sorted({"goal", "page", "done", "solved"} - task.keys())
    if missing:
        raise ForeignRefusal(f"{folder / TASK_FILE}: no {', '.join(missing)}")
    return task


class WebTask(AbstractBrowserTask):  # type: ignore[misc]
    """A task of a folder. Its reward is 1 if the page says that it is solved when it is done, else 0."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed)
        self.viewport = {"width": 800, "height": 600}
        self.slow_mo = 0
        self.timeout = 5000
        self._folder = folder
        self._task = read_web_task(folder)
        self.oracle: list[list[str]] = self._task.get("oracle", [])

    def setup(self, page: Any) -> tuple[str, dict[str, Any]]:
        """Open the first page. Return the goal."""
        page.goto(serve_folder(str(self._folder)) + self._task["page"])
        return self._task["goal"], {}

    def validate(
        self, page: Any, chat_messages: list[str]
    ) -> tuple[float, bool, str, dict[str, Any]]:
        """Return reward and whether the task has ended."""
        if not page.evaluate(f"() => Boolean({self._task['done']})"):
            return 0.0, False, "", {}
        return float(page.evaluate(f"() => Boolean({self._task['solved']})")), True, "", {}
