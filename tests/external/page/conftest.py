"""A system that learned a taste in the demo, and a Chromium that is signed in to its page."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Page,
    Request,
    sync_playwright,
)

from openclaw_rl.cli.page import create_link
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, scratch_config

ROOT = Path(__file__).parents[3]
REPLIES = 110
DEMO_SEED = 5
SCREENSHOTS = ROOT / "runs" / "page"
"""Where the screenshots of all views are left, to be looked at."""
WAIT = 120_000
"""Milliseconds for which the browser waits for a state."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--axe", type=Path, help="axe.min.js of the package axe-core")
    parser.addoption("--page-home", type=Path, help="a home that learned something, to be copied")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.timeout(1800))


@pytest.fixture(scope="session")
def learned_home(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The home of a demo with a user who likes short answers."""
    folder = tmp_path_factory.mktemp("page")
    given = request.config.getoption("--page-home")
    if given is not None:
        shutil.copytree(given, folder / "home")
        return folder / "home"
    command = [sys.executable, "-m", "benchmarks.demo.starter", "--out", str(folder / "out")]
    command += ["--taste", "short", "--seed", str(DEMO_SEED), "--replies", str(REPLIES)]
    # Whether it has learned enough is measured elsewhere.
    subprocess.run(command, cwd=ROOT, check=False, timeout=1500, stdout=subprocess.DEVNULL)
    (home,) = (folder / "out").glob("home-*")
    return home


@pytest.fixture(scope="module")
def home(learned_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of that home, which the tests of one module change."""
    folder = tmp_path_factory.mktemp("copy") / "home"
    shutil.copytree(learned_home, folder)
    return folder


@pytest.fixture(scope="module")
def system(home: Path) -> Iterator[SubprocessSystem]:
    """The real system on that copy, with two conversations that nobody understood, and a group of episodes."""
    with SubprocessSystem(scratch_config(home)) as system:
        fill(system)
        wait_for_page(system)
        yield system


def wait_for_page(system: SubprocessSystem) -> None:
    """Wait until the page answers: it starts after the gateway, which says 503 until then."""
    deadline = time.monotonic() + WAIT / 1000
    while True:
        try:
            with urllib.request.urlopen(system.base_url + "/ui/static/page.css", timeout=60):
                return
        except urllib.error.HTTPError as error:
            if error.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > deadline:
                raise
        time.sleep(0.2)


def call(system: SubprocessSystem, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """Send a request to the gateway with the owner's key."""
    request = urllib.request.Request(
        system.base_url + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {system.api_key}",
            "Content-Type": "application/json",
            **headers,
        },
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return json.load(response)


def talk(system: SubprocessSystem, *messages: str, agent: str = "") -> list[str]:
    """Say the messages one after the other in one conversation. Return the ids of the replies."""
    history: list[dict[str, Any]] = []
    ids = []
    for message in messages:
        history.append({"role": "user", "content": message})
        body = {"model": system.config.model.name, "messages": history, "max_tokens": 64}
        reply = call(system, "POST", "/v1/chat/completions", body, **{"X-Agent-Id": agent})
        history.append(reply["choices"][0]["message"])
        ids.append(reply["id"])
    return ids


def fill(system: SubprocessSystem) -> None:
    """Add what the demo's user does not do: reactions without a meaning, feedback, and agents at work."""
    talk(system, "What is the capital of France?", "hm, the weather is odd today", agent="phone")
    first, _ = talk(system, "What colour is the sky?", "zzz qqq", "bye", agent="phone")[:2]
    call(system, "POST", "/v1/feedback", {"id": first, "score": 1, "comment": "nice"})
    for number, reward in enumerate((0.0, 1.0)):
        name = f"attempt-{number}"
        episode = {"task": "two plus two", "group": {"id": "sums-1", "size": 2}}
        ticket = call(system, "PUT", f"/v1/episodes/{name}", episode)
        body = {
            "model": system.config.model.name,
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
        }
        key = {"Authorization": f"Bearer {ticket['api_key']}"}
        call(system, "POST", "/v1/chat/completions", body, **key)
        end = {"status": "done", "reward": reward}
        call(system, "POST", f"/v1/episodes/{name}/outcome", end)


# ---------------------------------------------------------------------------------- the browser


@dataclass
class Visitor:
    """A page in the browser, and what went wrong in it."""

    page: Page
    base: str
    problems: list[str] = field(default_factory=list)

    def note_message(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def note_request(self, request: Request) -> None:
        if not request.url.startswith((self.base, "data:", "blob:")):
            self.problems.append(f"request to {request.url}")

    def open(self, path: str) -> None:
        self.page.goto(self.base + path)

    def check(self) -> None:
        """Fail if anything went wrong so far."""
        assert not self.problems


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    assert path, "no Chromium is on PATH. On Debian: apt install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


OpenVisitor = Callable[..., Visitor]


@pytest.fixture
def open_visitor(system: SubprocessSystem, chromium: Browser) -> Iterator[OpenVisitor]:
    """Open a browser that signs in by a link: `open_visitor(width=1280, scheme="light")`."""
    contexts: list[BrowserContext] = []

    def open_visitor(
        *, width: int = 1280, scheme: str = "light", zone: str | None = None
    ) -> Visitor:
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            timezone_id=zone,
        )
        context.set_default_timeout(WAIT)
        contexts.append(context)
        visitor = Visitor(context.new_page(), system.base_url)
        visitor.page.on("console", visitor.note_message)
        visitor.page.on("pageerror", lambda error: visitor.problems.append(f"error: {error}"))
        visitor.page.on("request", visitor.note_request)
        visitor.page.goto(create_link(system.config))
        visitor.page.wait_for_url("**/ui/now")
        return visitor

    yield open_visitor
    for context in contexts:
        context.close()


@pytest.fixture
def visitor(open_visitor: OpenVisitor) -> Visitor:
    return open_visitor()


def view_paths(visitor: Visitor, *, each: int = 2) -> Sequence[str]:
    """Return addresses of all views, by following the links of the page: at most `each` of one kind."""
    todo = ["/ui/now"]
    kinds: dict[str, int] = {}
    paths: list[str] = []
    while todo:
        path = todo.pop(0)
        kind = address_kind(path)
        if path in paths or kinds.get(kind, 0) >= each:
            continue
        kinds[kind] = kinds.get(kind, 0) + 1
        paths.append(path)
        visitor.open(path)
        links = visitor.page.eval_on_selector_all(
            "a[href^='/ui']", "all => all.map(a => a.getAttribute('href'))"
        )
        todo += [link for link in links if "#" not in link]
    return paths


def address_kind(path: str) -> str:
    """Return the address without the ids in it, and with the names of its parameters alone."""
    address, _, query = path.partition("?")
    parts = ["*" if place > 2 else part for place, part in enumerate(address.split("/"))]
    names = sorted(pair.partition("=")[0] for pair in query.split("&") if pair.partition("=")[2])
    return "/".join(parts) + "?" + "&".join(names)
