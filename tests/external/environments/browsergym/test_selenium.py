"""Screenshots of web tasks by Selenium, attached to the one real Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.external.environments.browsergym.test_browsergym import LIMITS, PYTHON, WEB, run_program
from tests.external.environments.conftest import LibraryCommand
from tests.external.environments.recorded_system import RecordedSystem

COLORS = [(40 * n, 250 - 30 * n, 20 + 25 * n) for n in range(6)] + [(255, 255, 0), (255, 0, 255)]
SHOTS = re.compile(r"COMMAND Screenshot\b")
WINDOWS = re.compile(r'COMMAND SwitchToWindow \{\s*"handle": "(\w+)"')


@pytest.fixture
def command(system: RecordedSystem, tmp_path: Path) -> LibraryCommand:
    return LibraryCommand(system, tmp_path / "tmp", PYTHON)


@pytest.fixture
def driver_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Put a chromedriver that logs first on PATH. Return a function that reads the logs of all that were started."""
    driver = shutil.which("chromedriver")
    assert driver, "expected a chromedriver on PATH (on Debian: apt install chromium-driver)"
    for folder in (tmp_path / "bin", tmp_path / "logs"):
        folder.mkdir()
    wrapper = tmp_path / "bin" / "chromedriver"
    wrapper.write_text(
        f'#!/bin/sh\nexec "{driver}" --verbose "--log-path={tmp_path}/logs/$$" "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}")
    return lambda: "".join(
        file.read_text(errors="replace") for file in sorted((tmp_path / "logs").iterdir())
    )


def count_frames(film: Path) -> int:
    """Return how many screenshots of 800 x 600 the filmstrips in a folder have."""
    sizes = [struct.unpack(">II", file.read_bytes()[16:24]) for file in film.iterdir()]
    assert all((width % 800, height) == (0, 600) for width, height in sizes), sizes
    return sum(width // 800 for width, _ in sizes)


def test_selenium_takes_every_screenshot_of_checks_and_episodes(
    command: LibraryCommand, tmp_path: Path, driver_log: Callable[[], str]
) -> None:
    film = tmp_path / "film"
    checked = command.run(
        "check", f"browsergym:{WEB}?film={film}&screenshots=selenium", *LIMITS[:2]
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert len(list(film.glob("*-oracle.png"))) == 8
    assert len(SHOTS.findall(driver_log())) == count_frames(film) > 16
    command.assert_nothing_left()
    source = f"browsergym:{WEB}/book-search?film={film}&screenshots=selenium"
    found = command.play(source, "selenium", "--group", "8", "--parallel", "8", *LIMITS)
    assert (found["done"], found["void"]["count"]) == (8, 0), found
    assert len(SHOTS.findall(driver_log())) == count_frames(film)
    command.assert_nothing_left()


def test_playwright_needs_no_chromedriver_and_no_port(
    command: LibraryCommand, tmp_path: Path, driver_log: Callable[[], str]
) -> None:
    film = tmp_path / "film"
    checked = command.run(
        "check", f"browsergym:{WEB}/book-search?film={film}&screenshots=playwright", *LIMITS[:2]
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert count_frames(film) > 2
    assert driver_log() == ""
    assert run_program(PORT_PROGRAM, tmp_path, f"{WEB}/book-search", "playwright") == []
    (port,) = run_program(PORT_PROGRAM, tmp_path, f"{WEB}/book-search", "selenium")
    assert port.startswith("127.0.0.1:")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            "film=/film&screenshots=puppeteer",
            "screenshots: expected playwright or selenium, got puppeteer",
        ),
        ("screenshots=selenium", "screenshots: nothing takes them without film"),
        ("film=film", "film: expected the absolute path of a folder, got film"),
        ("film=/film&screenshots=selenium", "no chromedriver on PATH. Expected"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    command: LibraryCommand, monkeypatch: pytest.MonkeyPatch, arguments: str, words: str
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    refused = command.run("run", f"browsergym:{WEB}?{arguments}")
    assert refused.returncode != 0
    (line,) = refused.stderr.splitlines()
    assert words in line


PORT_PROGRAM = """
import asyncio, json, subprocess, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import browsergym_worker as worker

def listening(pid):
    sockets = {str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir()}
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = [row[1].split(":") for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]
    return [".".join(str(byte) for byte in reversed(bytes.fromhex(host))) + f":{int(port, 16)}" for host, port in local]

def find_ports(episode):
    session = episode._env.page.context.browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return [port for one in found if one["type"] == "browser" for port in listening(one["id"])]

async def play():
    data = {"folder": sys.argv[2], "seed": 0, "film": "film", "screenshots": sys.argv[3]}
    episode = await worker.in_browser(worker.BrowserEpisode, data)
    await worker.in_browser(episode.open_page)
    print("RESULT" + json.dumps(await worker.in_browser(find_ports, episode)))

asyncio.run(play())
"""


MISSING_PROGRAM = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
sys.modules["selenium"] = None
import browsergym_worker as worker

args = {"film": "/film", "screenshots": "selenium"}
try:
    asyncio.run(worker.list_tasks({"name": sys.argv[2], "args": args, "start": 0}))
except worker.ForeignRefusal as error:
    print("RESULT" + json.dumps(str(error)))
"""


def test_without_the_package_the_line_that_installs_it_is_printed(tmp_path: Path) -> None:
    said = run_program(MISSING_PROGRAM, tmp_path, WEB)
    assert f"Expected it beside the library: {PYTHON} -m pip install 'selenium>=4.51,<5'" in said


OTHER_DRIVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(200, {{"ready": True, "message": ""}})

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        message = "session not created: This version of ChromeDriver only supports Chrome version 99"
        self.answer(500, {{"error": "session not created", "message": message, "stacktrace": "#0 0x1"}})

    def answer(self, status, value):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({{"value": value}}).encode())

port = next(int(word.split("=")[1]) for word in sys.argv if word.startswith("--port="))
HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


CHECK_PROGRAM = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import browsergym_worker as worker

data = {"folder": sys.argv[2], "seed": 0, "film": "film", "screenshots": "selenium"}
try:
    asyncio.run(worker.check_task({"task": "check", "data": data}))
except worker.ForeignRefusal as error:
    print("RESULT" + json.dumps(str(error)))
"""


def test_a_chromedriver_of_another_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "bin" / "chromedriver"
    driver.parent.mkdir()
    driver.write_text(OTHER_DRIVER.format(python=PYTHON))
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", f"{driver.parent}{os.pathsep}{os.environ['PATH']}")
    said = run_program(CHECK_PROGRAM, tmp_path, f"{WEB}/book-search")
    assert re.search(
        r"only supports Chrome version 99. Expected the chromedriver of version \d+\.", said
    ), said
    assert not (tmp_path / "film").exists()


def write_page(folder: Path, color: tuple[int, int, int]) -> str:
    """Write a task with a page in one color, which turns black by a button; others alert and open a white page."""
    folder.mkdir()
    task = {"goal": "Look.", "page": "index.html", "done": "false", "solved": "false"}
    (folder / "task.json").write_text(json.dumps(task))
    (folder / "index.html").write_text(
        f"<body style='background: rgb{color}'><button onclick=\"alert('!')\">alert</button>"
        "<button onclick=\"document.body.style.background = 'black'\">dark</button>"
        "<button onclick=\"window.open('white.html')\">open</button>"
    )
    (folder / "white.html").write_text("<title>white</title><p>white")
    return str(folder)


PARALLEL_PROGRAM = """
import asyncio, json, os, sys
sys.path.insert(0, sys.argv[1])
import browsergym_worker as worker

async def open_episode(folder):
    data = {"folder": folder, "seed": 0, "film": "film", "screenshots": "selenium"}
    episode = await worker.in_browser(worker.BrowserEpisode, data)
    await worker.in_browser(episode.open_page)
    return episode

async def click(episode, name):
    bid = next(line.split("[")[1].split("]")[0] for line in episode.page.splitlines() if f"button '{name}'" in line)
    await worker.in_browser(episode.act, f"click('{bid}')")

def colors(episode):
    return [image.getpixel((400, 300)) for image in episode._frames]

def find_browser(episode):
    session = episode._env.page.context.browser.new_browser_cdp_session()
    found = session.send("SystemInfo.getProcessInfo")["processInfo"]
    return next(one["id"] for one in found if one["type"] == "browser")

async def fails(episode):
    try:
        await click(episode, "dark")
    except Exception:
        return True
    return False

async def play():
    episodes = [await open_episode(folder) for folder in sys.argv[2:]]
    for episode in reversed(episodes):
        await click(episode, "alert")
    for episode in episodes:
        await click(episode, "dark")
    found = {"colors": [colors(episode) for episode in episodes]}
    await click(episodes[2], "open")
    found["in another tab"] = colors(episodes[2])[-1]
    driver = worker._cameras[0]._driver.service.process
    driver.kill()
    driver.wait()
    found["without driver"] = await fails(episodes[0])
    await click(episodes[1], "alert")
    found["with the next driver"] = colors(episodes[1])[-1]
    os.kill(await worker.in_browser(find_browser, episodes[1]), 9)
    found["without browser"] = await fails(episodes[1])
    found["in the next browser"] = colors(await open_episode(sys.argv[2]))
    print("RESULT" + json.dumps(found))

asyncio.run(play())
"""


def test_each_episode_gets_pictures_of_its_own_window_and_what_died_is_started_again(
    tmp_path: Path, driver_log: Callable[[], str]
) -> None:
    folders = [write_page(tmp_path / f"page{number}", color) for number, color in enumerate(COLORS)]
    found = run_program(PARALLEL_PROGRAM, tmp_path, *folders)
    assert found["colors"] == [[list(color), list(color), [0, 0, 0]] for color in COLORS]
    assert found["in another tab"] == [255, 255, 255]
    assert (found["without driver"], found["with the next driver"]) == (True, [0, 0, 0])
    assert (found["without browser"], found["in the next browser"]) == (True, [list(COLORS[0])])
    log = driver_log()
    assert len(set(WINDOWS.findall(log))) == len(COLORS) + 2
    assert len(SHOTS.findall(log)) >= 3 * len(COLORS) + 3
