"""The example at a web page with a real browser. Not collected unless it is named: `make test-gui`.

The browser: GUI_BROWSER names one, else playwright's own or the first on PATH. Without any, everything here fails.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.serve.conftest import KEY, Start, empty_store, renderers, start
from tests.system.test_words import run as command

from openclaw_rl.errors import PluginError
from openclaw_rl.rollouts.function import RolloutFunction
from openclaw_rl.rollouts.policy_client import PolicyClient
from openclaw_rl.rollouts.runner import RolloutTask, run_rollouts
from openclaw_rl.settings.load import from_flat
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config
from openclaw_rl.types import TurnState

__all__ = ["empty_store", "renderers", "start"]

FORM = """<!doctype html><title>Join</title><h1>Join us</h1>
<label>Name <input id=name></label> <label>Size <select id=size><option>small<option>large</select></label>
<button>Help</button> <button onclick="document.title = 'Help 2'">Help</button>
<button onclick="join()">Send</button>
<p id=said></p> <a href="/more">More</a> <a href="OTHER/secret">Other</a> <a href="/away">Away</a>
<a href="/slow">Slow</a>
<a href="/gone" target="_blank">Gone</a> <a href="OTHER/secret" target="_blank">Another</a>
<script>function join() {
  setTimeout(() => { said.textContent = 'Welcome, ' + name_() + ', ' + size.value }, 50) }
function name_() { return document.getElementById('name').value }</script>"""
PAGES = {
    "/": FORM,
    "/more": "<title>More</title><p>More of it",
    "/secret": "<title>Secret</title><p>geheim",
}
PAGES["/long"] = "<title>Long</title>" + "".join(f"<p>line {n}</p>" for n in range(1000))


@dataclass
class Pages:
    """A web server on loopback, and what it was asked for."""

    other: str = ""
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        pages = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                pages.asked.append(self.path)
                time.sleep(1.5 * (self.path == "/slow"))
                if (
                    to := {"/away": pages.other + "/secret", "/away2": pages.twin + "/secret"}.get(
                        self.path
                    )
                ) is not None:
                    self.send_response(302)
                    self.send_header("Location", to)
                    self.end_headers()
                    return
                body = (
                    PAGES.get(self.path, "<title>404</title><p>not there")
                    .replace("OTHER", pages.other)
                    .encode()
                )
                self.send_response(200 if self.path in PAGES else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_address[1]
        self.url, self.twin = f"http://127.0.0.1:{self.port}", ""
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def pages() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.close()


@pytest.fixture
def other() -> Iterator[Pages]:
    made = Pages()
    yield made
    made.close()


class Walk:
    """A rollout of the example: the real gateway, whose engine says these actions one after the other."""

    def __init__(self, start: Start, examples: Path) -> None:
        self._start, self._path = start, str(examples / "gui_rollout.py")

    def __call__(
        self, task: str, *actions: str, steps: int | None = None, **more: Any
    ) -> list[dict[str, Any]]:
        left = list(actions)

        def reply(prompt: Any, version: int) -> list[int]:
            tokens: list[int] = site.renderer.tokenizer.encode(left.pop(0)).tolist()
            return [*tokens, site.renderer.stop_token_ids[0]]

        site = self._start(
            reply=reply, settings={"engine.max_context": 16384}, context_length=16384
        )
        steps = steps or len(actions)
        entry = RolloutFunction(
            from_flat({"rollout.function_path": self._path, "rollout.max_turns": steps})
        )

        async def go() -> Any:
            async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {KEY}"}) as http:
                self.model = PolicyClient(
                    http, site.url, name=site.config.model.name, session="s", most=steps
                )
                return await entry.run(self.model, task, more)

        result: list[dict[str, Any]] = asyncio.run(go())
        assert all(call.sampling.max_tokens == 512 for call in site.engine.calls), (
            "no reply takes the whole context"
        )
        with site.store.read() as conn:
            self.opinions = [
                tuple(row)
                for row in conn.exec_driver_sql(
                    "SELECT score, comment FROM feedback ORDER BY given_at"
                )
            ]
        return result


@pytest.fixture
def walk(start: Start, examples: Path) -> Walk:
    return Walk(start, examples)


def states(system: SubprocessSystem) -> Counter[TurnState]:
    """Of the turns; what is said over and over is dropped."""
    store = Store.open(system.config.store_path, create=False)
    try:
        with store.read() as conn:
            return Counter(turns.count_by_state(conn))
    finally:
        store.close()


def user(walk: Walk) -> list[str]:
    return [str(m["content"]) for m in walk.model.messages if m["role"] == "user"]


def test_a_form_is_filled_in_and_sent(walk: Walk, pages: Pages, tmp_path: Path) -> None:
    done = walk(
        f"Join as Zoë at {pages.url}/.",
        'type "Zoë" into textbox "Name"',
        'type "large" into combobox "Size"',
        'click button "Send"',
        expect="Welcome, Zoë, large",
        screenshots=str(tmp_path / "shots"),
    )
    assert [(one["error"], one["reward"]) for one in done] == [
        (None, 0.0),
        (None, 0.0),
        (None, 1.0),
    ]
    first, second, third = user(walk)
    assert '- textbox "Name"\n' in first
    assert '- textbox "Name": Zoë' in second
    assert '- option "large" [selected]' in third
    ((score, comment),) = walk.opinions
    assert score == 1
    assert "Welcome, Zoë, large" in comment
    for one in done:
        assert Path(one["screenshot"]).read_bytes().startswith(b"\x89PNG")
    assert len({one["screenshot"] for one in done}) == 3


def test_the_next_prompt_reports_an_action_that_failed(walk: Walk, pages: Pages) -> None:
    done = walk(
        "Look round.",
        "I would like to see more.",
        'click button "Nothing"',
        'click button "Help"',
        'click button "Help" 3',
        'type "x" into button "Send"',
        'click button "Help" 2',
        "goto /more",
        "done",
        start=pages.url + "/",
        steps=9,
    )
    errors = [one["error"] for one in done]
    expected = (
        "expected one action in one line, as in",
        'there is no button "Nothing" on the page',
        'there are 2 of button "Help" on the page: say which, as in button "Help" 2',
        'there is no button "Help" 3 on the page',
        "type: Locator.fill: Error: Element is not an <input>",
    )
    assert all(error.startswith(words) for error, words in zip(errors, expected, strict=False)), (
        errors
    )
    assert errors[5:] == [None, None, None]
    asked = user(walk)
    assert all(
        text.startswith(f"error: {error}") for text, error in zip(asked[1:6], errors, strict=False)
    )
    assert "title: Help 2" in asked[6]
    assert asked[7].startswith(f"address: {pages.url}/more\ntitle: More\n")
    assert walk.opinions == [(None, asked[7])], "nobody knows: the judge reads the page"
    assert [one["reward"] for one in done] == [-1.0] * 5 + [0.0] * 3


def test_done_is_not_believed_where_the_page_says_otherwise(walk: Walk, pages: Pages) -> None:
    (one,) = walk("Join.", "done", start=pages.url + "/", expect="Welcome", steps=3)
    assert one["error"] == "it is not done: the page does not show 'Welcome'"
    assert [score for score, _ in walk.opinions] == [-1]


def test_it_stays_where_it_may_be(walk: Walk, pages: Pages, other: Pages) -> None:
    pages.other, pages.twin = f"http://localhost:{other.port}", other.url
    done = walk(
        "Look round.",
        f"goto {other.url}/secret",
        'click link "Other"',
        "goto file:///etc/passwd",
        "goto data:text/html,x",
        "goto /away",
        'click link "Away"',
        "goto /away2",
        'click link "Another"',
        'click link "More"',
        start=pages.url + "/",
    )
    errors = [one["error"] for one in done]
    assert all(error is not None and "permitted here" in error for error in errors[:8]), errors
    assert errors[8] is None
    assert "/away" in pages.asked
    assert other.asked == ["/secret"], (
        "by being forwarded to a port of the same host, and by nothing else"
    )
    said = "\n".join(user(walk))
    assert "geheim" not in said + walk.opinions[0][1]
    assert "root:" not in said
    assert all(f"address: {pages.url}/\n" in text for text in user(walk))


def test_addresses_that_the_task_names_may_be_visited(
    walk: Walk, pages: Pages, other: Pages
) -> None:
    (one,) = walk(
        "Look.",
        f"goto {other.url}/secret",
        start=pages.url + "/",
        origins=[other.url],
        expect="geheim",
    )
    assert (one["error"], one["reward"]) == (None, 1.0)


def test_a_file_may_read_its_folder(walk: Walk, tmp_path: Path) -> None:
    site = tmp_path / "site"
    site.mkdir()
    (tmp_path / "secret.html").write_text("<p>geheim")
    (site / "a.html").write_text(
        "<title>A</title><a href=b.html>B</a><iframe src=../secret.html></iframe>"
    )
    (site / "b.html").write_text("<title>B</title><p>second page")
    done = walk("Look.", "goto ../secret.html", 'click link "B"', start=(site / "a.html").as_uri())
    assert done[0]["error"] is not None
    assert "not permitted here" in done[0]["error"]
    assert done[1]["error"] is None
    assert "second page" in walk.opinions[0][1]


def test_a_new_tab_is_the_page_and_a_long_page_is_cut(walk: Walk, pages: Pages) -> None:
    done = walk("Look.", 'click link "Gone"', "goto /long", start=pages.url + "/")
    assert [one["error"] for one in done] == [None, None]
    assert "title: 404" in user(walk)[1]
    ((_, comment),) = walk.opinions
    assert "(the first 2000 of " in comment
    assert len(comment) < 2200


def test_a_page_is_waited_for(walk: Walk, pages: Pages) -> None:
    walk("Look.", 'click link "Slow"', start=pages.url + "/")
    assert "title: 404" in walk.opinions[0][1]


def test_pictures_go_along_only_where_the_task_says_so(walk: Walk, pages: Pages) -> None:
    with pytest.raises(PluginError, match=r"the gateway refused \(400\).*image"):
        walk("Look.", "done", start=pages.url + "/", pictures=True)
    assert walk.model.replies == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"expect": "Join us"}, "the first page shows 'Join us' already"),
        (
            {"start": "http://127.0.0.1:1/"},
            "http://127.0.0.1:1/: the page of the task does not load",
        ),
    ],
)
def test_a_task_that_cannot_begin(
    walk: Walk, pages: Pages, more: dict[str, Any], words: str
) -> None:
    with pytest.raises(PluginError, match=words):
        walk("Look.", "done", **{"start": pages.url + "/", **more})


def test_a_missing_browser_is_reported(
    walk: Walk, pages: Pages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUI_BROWSER", "/nowhere/chromium")
    with pytest.raises(PluginError, match=r"/nowhere/chromium \(GUI_BROWSER\) does not start"):
        walk("Look.", "done", start=pages.url + "/")
    monkeypatch.delenv("GUI_BROWSER")
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", "/nowhere")
    with pytest.raises(
        PluginError, match=r"no browser found: run `playwright install chromium`, or set GUI_BRO"
    ):
        walk("Look.", "done", start=pages.url + "/")


def test_the_starter_at_a_page_is_captured_and_judged(
    tmp_path: Path, pages: Pages, examples: Path
) -> None:
    """It has never seen a page: what it says is no action, which it is told, and from which it is judged."""
    with SubprocessSystem(
        scratch_config(
            tmp_path / "home", {"train.batch.min_turns": 64, "train.batch.max_turns": 64}
        )
    ) as system:
        made = command(
            *(
                "rollout",
                "--home",
                str(system.config.home_dir),
                "--port",
                str(system.config.serve.port),
            ),
            *("--rollout-function-path", str(examples / "gui_rollout.py"), "--max-turns", "3"),
            *("--out", str(tmp_path / "out"), "--prompt", f"Join at {pages.url}/.", "--num", "2"),
        )
        assert made.returncode == 0, made.stdout + made.stderr
        told = [json.loads(file.read_text()) for file in (tmp_path / "out").iterdir()]
        assert all(one["replies"] == len(one["result"]) >= 1 for one in told)
        system.wait_until_settled()
        found = states(system)
        assert found[TurnState.JUDGED] >= 1
        assert found[TurnState.JUDGED] + found[TurnState.DROPPED] == sum(
            one["replies"] for one in told
        )


def test_several_at_once(tmp_path: Path, pages: Pages, examples: Path) -> None:
    with SubprocessSystem(
        scratch_config(
            tmp_path / "home", {"train.batch.min_turns": 64, "train.batch.max_turns": 64}
        ),
        command="serve",
    ) as system:
        rollout = {
            "function_path": str(examples / "gui_rollout.py"),
            "parallel_envs": 2,
            "max_turns": 2,
        }
        config = system.config.model_copy(
            update={"rollout": system.config.rollout.model_copy(update=rollout)}
        )
        task = RolloutTask(text="Join.", more={"start": pages.url + "/", "screenshots": True})
        outcomes = asyncio.run(run_rollouts(config, [task], tmp_path / "out", num=2))
        assert [one.error for one in outcomes] == [None, None]
        assert len(list((tmp_path / "out" / "screenshots").iterdir())) == sum(
            one.replies for one in outcomes
        )
