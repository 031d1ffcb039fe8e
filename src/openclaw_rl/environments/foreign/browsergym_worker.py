"""Plays tasks of BrowserGym under the user's Python: pages as accessibility trees, replies as actions.

See `request_loop`. The browser belongs to one thread; the policy is asked by others.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import urllib.error
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from filmstrip import FilmFrame, write_film
from policy_chat import ask_policy, stop_reason
from request_loop import ForeignRefusal, content_digest, files_digest, page_of_tasks, serve_requests
from shared_browser import install_shared_browser, remove_empty_files, serve_folder

SUBSETS = ("chat", "bid")
"""Kinds of actions: no addresses and no code of the model's own."""
ACTIONS = (
    "click('12')  press the element [12]\n"
    "fill('12', 'text')  write into a field\n"
    "select_option('12', 'text')  choose from a list\n"
    "press('12', 'Enter')  press a key\n"
    "dblclick('12')  hover('12')  focus('12')  clear('12')  scroll(0, 200)\n"
    "drag_and_drop('12', '13')\n"
    "send_msg_to_user('text')  answer a question\n"
    "noop()  wait"
)
CALL = re.compile(r"""\b[a-z_]+\((?:[^()'"]|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")*\)""")
ACTION_LIMITS = ("timeout=500)", "timeout=3000)")
"""Limit of an action in the library's code, in ms, and ours: on a busy machine, half a second was too short."""
DEFAULT_SEEDS = 8
# Characters of a page that the policy sees.
MAX_PAGE = 6000

ARGUMENTS = ("seeds", "film", "typed")

_browser = ThreadPoolExecutor(1, "browser")


async def in_browser(function: Callable[..., Any], *args: Any) -> Any:
    """Call a function in the thread of the browser."""
    return await asyncio.get_running_loop().run_in_executor(_browser, function, *args)


async def list_tasks(asked: dict[str, Any]) -> dict[str, Any]:
    """Return the tasks of a name: a task of MiniWoB with several seeds, all of MiniWoB, or a folder of pages."""
    importlib.import_module("browsergym.core")
    name = asked["name"]
    args = asked["args"]
    unknown = sorted(args.keys() - set(ARGUMENTS))
    if unknown:
        raise ForeignRefusal(f"unknown arguments {unknown}. Known are {', '.join(ARGUMENTS)}")
    if not isinstance(args.get("typed", False), bool):
        raise ForeignRefusal(f"typed: expected true or false, got {args['typed']}")
    film = args.get("film")
    if film is not None and not Path(str(film)).is_absolute():
        raise ForeignRefusal(f"film: expected the absolute path of a folder, got {film}")
    return dict(
        page_of_tasks(
            _web_tasks(name, args) if "/" in name else _miniwob_tasks(name, args), asked["start"]
        )
    )


def _web_tasks(name: str, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    from web_tasks import find_web_tasks

    tasks = []
    for task, folder in find_web_tasks(Path(name)).items():
        data = {"folder": str(folder), "seed": 0, **_play_options(args)}
        tasks.append({"id": task, "digest": files_digest(folder), "data": data})
    return tasks


def _miniwob_tasks(name: str, args: Mapping[str, Any]) -> list[dict[str, Any]]:
    known = [
        one.get_task_id() for one in importlib.import_module("browsergym.miniwob").ALL_MINIWOB_TASKS
    ]
    chosen = known if name == "miniwob" else [name]
    if chosen[0] not in known:
        raise ForeignRefusal(
            f"no task {name!r}: expected miniwob, a folder, or one of {', '.join(known[:5])}, ..."
        )
    return [
        {
            "id": f"{task}.{seed}",
            "digest": content_digest([task, seed]),
            "data": {"task": task, "seed": seed, **_play_options(args)},
        }
        for task in chosen
        for seed in range(int(args.get("seeds", DEFAULT_SEEDS)))
    ]


def _play_options(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return how episodes are played. `typed`: whether replies are typed. `film`: the folder of the filmstrips."""
    return {"film": args.get("film"), "typed": args.get("typed", False)}


class BrowserEpisode:
    """An episode in a context of the shared browser. All methods are for the thread of the browser."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        install_shared_browser()
        from browsergym.core.action.highlevel import HighLevelActionSet
        from browsergym.core.env import BrowserEnv

        entry, arguments = _task_class(data)
        actions = HighLevelActionSet(subsets=list(SUBSETS), strict=True, multiaction=False)
        actions.python_includes = actions.python_includes.replace(*ACTION_LIMITS)
        self._env = BrowserEnv(
            entry,
            arguments,
            slow_mo=0,
            pre_observation_delay=0,
            action_mapping=actions.to_python_code,
        )
        self._seed = data["seed"]
        self._film = data.get("film")
        self._task = str(data["task"] if "task" in data else Path(data["folder"]).name)
        self._frames: list[FilmFrame] = []
        self.reward = 0.0
        self.is_over = False
        self.goal = self.page = self.problem = ""

    def open_page(self) -> None:
        """Open the task's first page."""
        seen, _ = self._env.reset(seed=self._seed)
        self.goal = "\n".join(
            part["text"] for part in seen["goal_object"] if part["type"] == "text"
        )
        self._take_observation(seen, "")

    def act(self, action: str) -> None:
        """Do an action. What fails in it is the next observation's problem."""
        seen, reward, self.is_over, _, _ = self._env.step(action)
        self.reward += float(reward)
        self._take_observation(seen, action)

    def take_reply(self, reply: str) -> None:
        """Do the first action in a reply."""
        call = CALL.search(reply)
        if call is not None:
            self.act(call.group(0))
        else:
            self.problem = "your reply has no action"

    def type_text(self, text: str) -> None:
        """Write a text into the field that has the focus, and press Enter there."""
        field = self._env.page.evaluate("() => document.activeElement?.getAttribute('bid') ?? null")
        if field is None:
            self.problem = "no field has the focus"
            return
        self.act(f"fill({json.dumps(field)}, {json.dumps(text)})")
        if not self.is_over and not self.problem:
            self.act(f"press({json.dumps(field)}, 'Enter')")

    def replay_oracle(self) -> None:
        """Do the actions of the task's oracle. Raises `ForeignRefusal` if one of them fails."""
        for name, selector, *more in self._env.task.oracle:
            bid = self._env.page.locator(selector).get_attribute("bid")
            self.act(f"{name}({', '.join(json.dumps(word) for word in (bid, *more))})")
            if self.problem:
                raise ForeignRefusal(f"the oracle's {name} {selector} failed: {self.problem}")

    def close(self, name: str) -> None:
        """Close the context, and write the film if one is wanted."""
        self._env.close()
        remove_empty_files()
        if self._film and self._frames:
            write_film(
                Path(self._film),
                name,
                self._frames,
                task=self._task,
                goal=self.goal,
                reward=self.reward,
            )

    def _take_observation(self, seen: Mapping[str, Any], action: str) -> None:
        """Take what the policy sees next. `action`: what was done; "" for the first page."""
        from browsergym.utils.obs import flatten_axtree_to_str

        self.page = flatten_axtree_to_str(seen["axtree_object"])[:MAX_PAGE]
        self.problem = seen["last_action_error"].strip()[:300]
        if self._film:
            self._frames.append(FilmFrame(image=_take_picture(self._env.page), action=action))


def _take_picture(page: Any) -> Any:
    """Return an image of the page as the browser shows it."""
    from browsergym.core.observation import extract_screenshot
    from PIL import Image

    return Image.fromarray(extract_screenshot(page))


def _task_class(data: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    if "folder" in data:
        from web_tasks import WebTask

        return WebTask, {"folder": Path(data["folder"])}
    import miniwob

    pages = Path(miniwob.__file__).parent / "html"
    tasks = importlib.import_module("browsergym.miniwob").ALL_MINIWOB_TASKS
    entry = next(one for one in tasks if one.get_task_id() == data["task"])
    return entry, {"base_url": f"{serve_folder(str(pages))}miniwob/"}


async def play_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Play an episode: the page as text, the first action in each reply, until the task ends or a limit.

    Typed, the policy first gets the goal alone, and each reply is written into the field that has the focus.
    Raises `ForeignRefusal` if the limit is reached before the page is open, which is not the policy's fault.
    """
    episode: BrowserEpisode = await in_browser(BrowserEpisode, asked["data"])
    reason = "the task ended"
    is_open = False
    try:
        async with asyncio.timeout(asked["seconds"]):
            await in_browser(episode.open_page)
            is_open = True
            is_typed = asked["data"]["typed"]
            take_reply = episode.type_text if is_typed else episode.take_reply
            messages = [] if is_typed else [{"role": "system", "content": write_system(episode)}]
            while not episode.is_over:
                seen = episode.goal if is_typed and not messages else write_page(episode)
                messages.append({"role": "user", "content": seen})
                reply, _ = await asyncio.to_thread(ask_policy, asked, messages)
                messages.append({"role": "assistant", "content": reply})
                await in_browser(take_reply, reply)
    except TimeoutError:
        reason = f"its limit of {asked['seconds']:g} s"
        if not is_open:
            raise ForeignRefusal(f"the page was not open within {asked['seconds']:g} s") from None
    except urllib.error.HTTPError as error:
        reason = stop_reason(error)
    finally:
        await asyncio.shield(in_browser(episode.close, asked["episode"]))
    return {"outcome": {"reward": episode.reward, "reason": reason}}


def write_system(episode: BrowserEpisode) -> str:
    """Return the instructions for the policy."""
    return f"You use a web page. Reply with one action.\n\n{ACTIONS}\n\nTask: {episode.goal}"


def write_page(episode: BrowserEpisode) -> str:
    """Return the observation: what went wrong with the last action, and the page."""
    return "\n".join(
        [*([f"Problem: {episode.problem}"] if episode.problem else []), "Page:", episode.page]
    )


async def check_task(asked: dict[str, Any]) -> dict[str, Any]:
    """Do nothing, then replay the task's oracle. Return as `sources/library_source.py` expects."""

    def run_once(name: str, work: Callable[[BrowserEpisode], None]) -> BrowserEpisode:
        episode = BrowserEpisode(asked["data"])
        try:
            episode.open_page()
            work(episode)
        finally:
            episode.close(f"{asked['task']}-{name}")
        return episode

    nop = await in_browser(run_once, "nop", lambda episode: episode.act("noop(0)"))
    if nop.reward >= 1:
        return {"nop": nop.reward, "reason": f"doing nothing got {nop.reward:g}", "checkable": True}
    if "folder" not in asked["data"]:
        reason = "it opens, and doing nothing gets 0, but it has no answer to replay"
        return {"nop": nop.reward, "reason": reason, "checkable": False}
    best = await in_browser(run_once, "oracle", BrowserEpisode.replay_oracle)
    reason = "" if best.reward == 1 else f"the oracle got {best.reward:g}, not 1"
    return {"oracle": best.reward, "nop": nop.reward, "reason": reason, "checkable": True}


if __name__ == "__main__":
    serve_requests({"tasks": list_tasks, "check": check_task, "play": play_task})
