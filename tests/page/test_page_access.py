"""Who may see the page: links, cookies, other origins, and requests past the gateway."""

from __future__ import annotations

import http.client
import time

import pytest
from tests.page.conftest import Browser, OpenPage, new_ticket
from tests.serve.conftest import KEY, Start

from openclaw_rl.common.gateway_address import home_key, running_page
from openclaw_rl.page.sections import SECTIONS
from openclaw_rl.store import page_access

ANOTHER_SITE = "http://evil.example"
PATHS = [view.path for section in SECTIONS for view in section.views]
ACT_PATHS = [act.path for section in SECTIONS for act in section.acts]
STREAM_PATHS = [path for section in SECTIONS for path in section.streams]


def concrete(path: str) -> str:
    """Return the address with something in place of each variable part."""
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


def without_cookie(browser: Browser) -> Browser:
    return Browser(browser.site, None)


def test_a_link_signs_in_one_browser_once(browser: Browser) -> None:
    stranger = without_cookie(browser)
    ticket = new_ticket(browser.site.store)
    answer = stranger.post("/ui/sign-in", {"ticket": ticket})
    assert answer.status_code == 204
    cookie = answer.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "Path=/ui" in cookie
    stranger.cookie = cookie.partition(";")[0]
    assert stranger.get("/ui/now").status_code == 200
    assert stranger.post("/ui/sign-in", {"ticket": ticket}).status_code == 401


@pytest.mark.parametrize("kind", ["old", "unknown", "empty", "home key", "API key"])
def test_anything_else_does_not_sign_in(browser: Browser, kind: str) -> None:
    store = browser.site.store
    ticket = {
        "old": new_ticket(store, at=time.time() - page_access.TICKET_SECONDS - 1),
        "unknown": "x" * 32,
        "empty": "",
        "home key": home_key(store.secret),
        "API key": KEY,
    }[kind]
    answer = without_cookie(browser).post("/ui/sign-in", {"ticket": ticket})
    assert answer.status_code == 401
    assert "Set-Cookie" not in answer.headers


@pytest.mark.parametrize("cookie", [None, "other=1", "wrong token"])
def test_nothing_is_shown_without_the_cookie(browser: Browser, cookie: str | None) -> None:
    name = (browser.cookie or "").partition("=")[0]
    stranger = Browser(browser.site, f"{name}=abc" if cookie == "wrong token" else cookie)
    for path in ("/ui", "/ui/changes", "/ui/acts/state/abcdefgh1", "/ui/unknown"):
        assert stranger.get(path).status_code == 401
    for path in map(concrete, [*PATHS, *ACT_PATHS]):
        assert stranger.get(path).status_code == 401, path
    for path in map(concrete, [*ACT_PATHS, *STREAM_PATHS, "/ui/sign-out"]):
        assert stranger.post(path, {"act_id": "abcdefgh1"}).status_code == 401, path


def test_the_api_key_is_not_enough(browser: Browser) -> None:
    answer = without_cookie(browser).get("/ui/now", {"Authorization": f"Bearer {KEY}"})
    assert answer.status_code == 401


def test_a_browser_that_opens_a_link_gets_the_page_that_reads_it(browser: Browser) -> None:
    answer = without_cookie(browser).get(
        "/ui", {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "none"}
    )
    assert answer.status_code == 200
    assert "not signed in" in answer.text


def test_signing_out_ends_the_session(browser: Browser) -> None:
    assert browser.post("/ui/sign-out", {}).status_code == 204
    assert browser.get("/ui/now").status_code == 401


def test_all_browsers_can_be_signed_out(browser: Browser) -> None:
    ticket = new_ticket(browser.site.store)
    with browser.site.store.write() as conn:
        assert page_access.end_all_sessions(conn) == 1
    assert browser.get("/ui/now").status_code == 401
    assert without_cookie(browser).post("/ui/sign-in", {"ticket": ticket}).status_code == 401


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ANOTHER_SITE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": "http://127.0.0.1:1", "Sec-Fetch-Site": "same-site"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "", "Sec-Fetch-Site": ""},
        {"Origin": ANOTHER_SITE, "Sec-Fetch-Site": "same-origin"},
    ],
    ids=["other site", "other port", "sandboxed frame", "no origin", "origin alone"],
)
def test_another_page_cannot_act(browser: Browser, headers: dict[str, str]) -> None:
    for path in map(concrete, [*ACT_PATHS, *STREAM_PATHS, "/ui/sign-out"]):
        answer = browser.send("POST", path, {"act_id": "abcdefgh1"}, headers)
        assert answer.status_code == 403, path
    with browser.site.store.read() as conn:
        assert conn.exec_driver_sql("SELECT count(*) FROM acts").scalar_one() == 0
    assert browser.get("/ui/now").status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_cannot_read_parts(browser: Browser, site: str) -> None:
    headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Origin": ""}
    assert browser.get("/ui/now", headers).status_code == 403


def test_a_name_that_was_made_to_resolve_here_is_refused(browser: Browser) -> None:
    assert browser.get("/ui/now", {"Host": "evil.example"}).status_code == 403
    assert browser.get("/ui", {"Host": "evil.example"}).status_code == 403


def test_the_page_answers_through_the_gateway_alone(browser: Browser) -> None:
    port = running_page(browser.site.config.home_dir)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=240)
    connection.request("GET", "/ui/now", headers={"Cookie": browser.cookie or ""})
    assert connection.getresponse().status == 403
    connection.close()


def test_every_answer_has_the_headers_that_keep_others_out(browser: Browser) -> None:
    for answer in (
        browser.get("/ui/now"),
        browser.get("/ui/unknown"),
        browser.get("/ui/static/page.css"),
        without_cookie(browser).get("/ui/now"),
    ):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "X-OpenClaw-Page-Session" not in answer.headers


def test_other_origins_may_not_read_even_where_the_gateway_lets_them(
    start: Start, open_page: OpenPage
) -> None:
    browser = open_page(start(settings={"serve.cors_origins": ["*"]}))
    answer = browser.get("/ui/now", {"Origin": ANOTHER_SITE, "Sec-Fetch-Site": ""})
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_no_secret_is_in_a_page(browser: Browser) -> None:
    token = (browser.cookie or "").partition("=")[2]
    secrets = (KEY, home_key(browser.site.store.secret), token)
    for path in map(concrete, PATHS):
        text = browser.get(path).text
        assert not [secret for secret in secrets if secret in text]


@pytest.mark.parametrize("path", ["/ui/static/../app.py", "/ui/static/%2e%2e/app.py"])
def test_only_static_files_are_files(browser: Browser, path: str) -> None:
    assert without_cookie(browser).get(path).status_code in (401, 403, 404)


def test_a_form_that_is_too_large_is_refused(browser: Browser) -> None:
    act = ACT_PATHS[0]
    answer = browser.post(act, {"act_id": "abcdefgh1", "text": "x" * 400_000})
    assert answer.status_code == 413
    assert "KiB" in answer.text


def test_a_form_of_a_megabyte_is_refused_before_it_is_passed_on(browser: Browser) -> None:
    answer = browser.post("/ui/sign-in", {"ticket": "x" * 1_200_000})
    assert answer.status_code == 413


def test_an_absolute_address_names_no_other_host(browser: Browser) -> None:
    answer = browser.send("GET", f"http://{browser.host}/ui/now")
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path", ["/ui/conversations?day=9999-12-31", "/ui/conversations?day=x", "/ui/turns/none"]
)
def test_an_address_that_means_nothing_is_explained(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    assert answer.status_code == 404
    assert "This did not work" in answer.text


# ------------------------------------------------------------------------------- the gateway's side


def test_the_root_says_to_a_browser_what_this_is(start: Start) -> None:
    site = start()
    answer = site.http.get("/", {"Accept": "text/html,*/*"})
    assert answer.status_code == 200
    assert "openclaw-rl open" in answer.text
    assert site.http.get("/", {"Accept": "*/*"}).json()["error"]["message"]


@pytest.mark.parametrize("is_on", [True, False])
def test_the_setting_turns_the_page_off(start: Start, open_page: OpenPage, *, is_on: bool) -> None:
    browser = open_page(start(settings={"serve.page": is_on}))
    assert (browser.get("/ui/now").status_code == 200) is is_on
    root = browser.get("/").text
    assert ("serve.page: false" in root) is not is_on


def test_the_gateway_says_that_the_page_is_starting(start: Start) -> None:
    answer = start().http.get("/ui/now", {"Accept": "text/html"})
    assert answer.status_code == 503
    assert "starting" in answer.text
