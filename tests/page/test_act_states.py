"""Acts whose answer the browser did not get: the page says whether they were done, also while one is carried out."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlencode

from tests.page.conftest import Browser, PageThread
from tests.serve.conftest import wait_for

from openclaw_rl.store.lineage.policy_marks import frozen_since

FREEZE = "/ui/acts/freeze-training"
ACT = "a" * 24
STATE = "/ui/acts/state/"


def send_form(browser: Browser, path: str, form: Mapping[str, str]) -> socket.socket:
    """Send a form without reading the answer."""
    host, _, port = browser.host.partition(":")
    connection = socket.create_connection((host, int(port)), timeout=240)
    body = urlencode(form)
    head = [
        f"POST {path} HTTP/1.1",
        f"Host: {browser.host}",
        f"Origin: {browser.site.url}",
        "Sec-Fetch-Site: same-origin",
        f"Cookie: {browser.cookie}",
        "Content-Type: application/x-www-form-urlencoded",
        f"Content-Length: {len(body)}",
    ]
    connection.sendall("\r\n".join([*head, "", body]).encode())
    return connection


def test_an_act_that_never_came_is_not_done(browser: Browser) -> None:
    answer = browser.get(STATE + ACT)
    assert "<h2>Not done so far</h2>" in answer.text
    assert "Look again" in answer.text


def test_an_act_that_is_carried_out_meanwhile_is_waited_for(
    browser: Browser, pages: list[PageThread]
) -> None:
    page = pages[-1].page
    store = browser.site.store
    with ThreadPoolExecutor(1) as executor:
        with store.write():
            # It waits for the store.
            connection = send_form(browser, FREEZE, {"act_id": ACT})
            wait_for(lambda: list(page.running_acts), lambda ids: ids == [ACT])
            connection.close()
            asked = executor.submit(browser.get, STATE + ACT)
        answer = asked.result()
    assert "<h2>Done</h2>" in answer.text
    assert "It was done" in answer.text
    with store.read() as conn:
        assert frozen_since(conn) is not None
    assert not page.running_acts
