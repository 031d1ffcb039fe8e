"""The gateway, or the page's own process, is killed while a person acts: it is said whether the act was done."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Request, Route, expect
from tests.external.page.conftest import OpenVisitor, Visitor
from tests.external.page.walk import open_dialog

from openclaw_rl.store import heartbeats
from openclaw_rl.store.acts import get_act
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies, policy_marks
from openclaw_rl.supervisor.subprocess_system import SubprocessSystem, is_ready

WAIT_SECONDS = 300.0
LOST = "The connection ended before the answer came"
ANSWERED = re.compile(f"^(Done|{LOST})$")
PIN = "**/ui/acts/pin-version"


def worker_pid(system: SubprocessSystem, name: str) -> int:
    with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
        return next(beat.pid for beat in heartbeats.read_heartbeats(conn) if beat.name == name)


def kill_worker(system: SubprocessSystem, name: str) -> int:
    """Kill a worker of the system. Return its process id."""
    pid = worker_pid(system, name)
    os.kill(pid, signal.SIGKILL)
    return pid


def wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def wait_for_gateway(system: SubprocessSystem, old: int) -> None:
    """Wait until another process than `old` serves."""
    wait_until(lambda: worker_pid(system, "gateway") != old)
    wait_until(lambda: is_ready(system.base_url, system.api_key))


def open_pin(visitor: Visitor, version: int) -> str:
    """Open the dialog that pins a version. Return the id of the act."""
    visitor.open(f"/ui/versions/{version}")
    dialog = open_dialog(visitor.page, "Pin its files")
    return dialog.locator("form[data-act]").get_attribute("data-act") or ""


def press_pin(page: Page) -> None:
    page.locator("dialog[open]").get_by_role("button", name="Pin", exact=True).click()


def ask(page: Page) -> str:
    """Wait until the page says that the connection ended; ask it. Return "Done" or "Not done so far"."""
    dialog = page.locator("dialog[open]")
    expect(dialog.get_by_role("heading", name=LOST)).to_be_visible()
    dialog.get_by_role("button", name="Look").click()
    heading = dialog.get_by_role("heading", name=re.compile("^(Done|Not done so far)$"))
    expect(heading).to_be_visible()
    return heading.inner_text()


def is_pinned(system: SubprocessSystem, act: str, version: int) -> bool:
    """Return whether the version is pinned, which must agree with the audit."""
    with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
        is_recorded = get_act(conn, act) is not None
        assert (version in policy_marks.pinned_versions(conn)) == is_recorded
    return is_recorded


@pytest.fixture
def unpinned(system: SubprocessSystem) -> list[int]:
    """The newest versions in use, now or before, that are not pinned. Training continues while the tests run."""
    with Store.open(system.config.store_path, create=False) as store, store.read() as conn:
        pinned = policy_marks.pinned_versions(conn)
        lineage = policies.lineage(conn, policies.head(conn).version)
    return sorted(set(lineage) - pinned, reverse=True)


def test_an_act_that_did_not_reach_the_gateway_is_said_to_be_not_done(
    system: SubprocessSystem, visitor: Visitor, unpinned: list[int]
) -> None:
    page = visitor.page
    killed: list[int] = []

    def lose_request(route: Route) -> None:
        killed.append(kill_worker(system, "gateway"))
        route.abort("connectionrefused")

    act = open_pin(visitor, unpinned[0])
    page.route(PIN, lose_request)
    press_pin(page)
    expect(page.get_by_role("heading", name=LOST)).to_be_visible()
    wait_for_gateway(system, *killed)
    assert ask(page) == "Not done so far"
    expect(page.locator("dialog[open]")).to_contain_text("Look again")
    assert not is_pinned(system, act, unpinned[0])


def test_an_act_whose_answer_was_lost_is_said_to_be_done(
    system: SubprocessSystem, visitor: Visitor, unpinned: list[int]
) -> None:
    page = visitor.page
    killed: list[int] = []

    def lose_answer(route: Route) -> None:
        route.fetch()
        killed.append(kill_worker(system, "gateway"))
        route.abort("connectionreset")

    act = open_pin(visitor, unpinned[0])
    page.route(PIN, lose_answer)
    press_pin(page)
    expect(page.get_by_role("heading", name=LOST)).to_be_visible()
    wait_for_gateway(system, *killed)
    assert ask(page) == "Done"
    expect(page.locator("dialog[open]")).to_contain_text("It was done")
    assert is_pinned(system, act, unpinned[0])


def test_what_is_said_is_true_if_the_gateway_dies_just_before_or_during_the_act(
    system: SubprocessSystem, visitor: Visitor, unpinned: list[int]
) -> None:
    """Also carried out by the next gateway, if the browser sends the request again."""
    page = visitor.page
    killed: list[int] = []

    def kill(request: Request) -> None:
        if request.method == "POST":
            killed.append(kill_worker(system, "gateway"))

    for version, dies_before in ((unpinned[0], True), (unpinned[1], False)):
        act = open_pin(visitor, version)
        if dies_before:
            killed.append(kill_worker(system, "gateway"))
        else:
            page.on("request", kill)
        press_pin(page)
        heading = page.locator("dialog[open]").get_by_role("heading", name=ANSWERED)
        expect(heading).to_be_visible()
        is_answered = heading.inner_text() == "Done"
        wait_for_gateway(system, killed[-1])
        is_done = is_answered or ask(page) == "Done"
        assert is_pinned(system, act, version) == is_done


def test_a_lost_connection_is_said_in_front_of_an_open_dialog(
    system: SubprocessSystem, visitor: Visitor
) -> None:
    page = visitor.page
    visitor.open("/ui/versions")
    open_dialog(page, "Freeze training")
    kill_worker(system, "page")
    note = page.locator("dialog[open] #live-note")
    expect(note).to_be_visible()
    is_in_front = """note => {
        const box = note.getBoundingClientRect();
        return note.contains(document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2));
    }"""
    assert note.evaluate(is_in_front)
    page.keyboard.press("Escape")
    expect(page.locator("body > #live-note")).to_have_count(1)
    # The page comes back.
    expect(page.locator("body > #live-note")).to_be_hidden()


def test_a_link_that_is_opened_while_the_page_starts_signs_in_when_it_is_there(
    system: SubprocessSystem, open_visitor: OpenVisitor
) -> None:
    killed = kill_worker(system, "page")
    visitor = open_visitor()
    assert visitor.page.get_by_role("heading", name="Now", level=1).is_visible()
    assert worker_pid(system, "page") != killed


def test_the_page_comes_back_by_itself_and_the_browser_stays_signed_in(
    system: SubprocessSystem, visitor: Visitor
) -> None:
    page = visitor.page
    killed = kill_worker(system, "page")
    expect(page.locator("#live-note")).to_be_visible()
    visitor.open("/ui/learned")
    expect(page.get_by_role("heading", name="What it learned", level=1)).to_be_visible()
    expect(page.locator("#live-note")).to_be_hidden()
    assert worker_pid(system, "page") != killed
