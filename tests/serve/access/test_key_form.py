"""A 401 says what form of key came, without the key."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from tests.serve.conftest import KEY, USER, Site

from openclaw_rl.common.gateway_address import home_key
from openclaw_rl.serve.access.key_form import KNOWN_VARIABLES
from openclaw_rl.serve.episodes.ticket import Ticket, make_ticket

ROOT = Path(__file__).parents[3]
SECRET = "q8Zr2TnVb4Yc6Wd0"
TICKET = make_ticket(b"another", Ticket(episode="e1", owner="abc", expires_at=2**31))
FORMS: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({}, "no Authorization header was sent, and neither x-api-key nor api-key"),
    "empty": ({"Authorization": ""}, "Authorization: an empty header"),
    "Bearer alone": ({"Authorization": "Bearer "}, "the word Bearer without a key"),
    "Bearer twice": ({"Authorization": f"Bearer Bearer {SECRET}"}, "the word Bearer twice"),
    "Basic": ({"Authorization": f"Basic {SECRET}"}, "the scheme Basic, where Bearer is expected"),
    "AWS": (
        {"Authorization": f"aws4-hmac-sha256 Credential={SECRET}"},
        "the scheme AWS4-HMAC-SHA256, where Bearer is expected",
    ),
    "no known scheme": (
        {"Authorization": f"Hawk {SECRET}"},
        "a key of 21 characters, with white space in it, without the word Bearer before it",
    ),
    "unknown variable": (
        {"Authorization": f"Bearer ${SECRET.upper()}"},
        "Authorization: a variable in a shell's notation that the client did not replace",
    ),
    "no scheme": (
        {"Authorization": SECRET},
        "a key of 16 characters, without the word Bearer before it",
    ),
    "quoted": ({"Authorization": f'Bearer "{SECRET}"'}, "a key in quotation marks"),
    "half quoted": ({"x-api-key": f"'{SECRET}"}, "x-api-key: a key in quotation marks"),
    "white space": ({"Authorization": f"Bearer {SECRET} {SECRET}"}, "with white space in it"),
    "variable": (
        {"Authorization": "Bearer ${OPENCLAW_API_KEY}"},
        "${OPENCLAW_API_KEY}, a variable that the client did not replace",
    ),
    "plain variable": ({"api-key": "$OPENCLAW_API_KEY"}, "api-key: $OPENCLAW_API_KEY, a variable"),
    "opencode's variable": (
        {"Authorization": "Bearer {env:OPENCLAW_API_KEY}"},
        "{env:OPENCLAW_API_KEY}, a variable",
    ),
    "command": ({"Authorization": "Bearer $(openclaw-rl key)"}, "a command in a shell's notation"),
    "placeholder": ({"Authorization": "Bearer EMPTY"}, "the placeholder 'EMPTY'"),
    "brackets": ({"Authorization": "Bearer <your key>"}, "a placeholder in brackets"),
    "path": ({"x-api-key": "~/.openclaw-rl/api_key"}, "the path of a key file"),
    "Bearer in x-api-key": ({"x-api-key": f"Bearer {SECRET}"}, "a key behind the word Bearer"),
    "OpenAI's": (
        {"Authorization": f"Bearer sk-{SECRET * 3}"},
        "a key of 51 characters that begins with sk-",
    ),
    "Anthropic's": (
        {"x-api-key": f"sk-ant-{SECRET}"},
        "a key of 23 characters that begins with sk-ant-, as Anthropic's keys do",
    ),
    "of another gateway": (
        {"Authorization": f"Bearer sk-openclaw-{SECRET * 2}"},
        "a key of 44 characters that begins with sk-openclaw-, as the key of a gateway does, but not",
    ),
    "another's ticket": (
        {"Authorization": f"Bearer {TICKET}"},
        f"a key of {len(TICKET)} characters that begins with sk-ep-: the ticket of an episode",
    ),
    "another home's": (
        {"Authorization": f"Bearer {home_key(b'another')}"},
        "that begins with sk-home-: the key of another home's commands",
    ),
    "web token": ({"Authorization": "Bearer eyJhbGci.eyJzdWIi.abc"}, "a JSON web token"),
    "masked": ({"Authorization": "Bearer sk-abcdefgh...wxyz"}, "which was masked or shortened"),
    "line of the key file": ({"Authorization": f"Bearer laptop:{SECRET}"}, "with a colon in it"),
    "plain": ({"Authorization": f"Bearer {SECRET}"}, "Authorization: a key of 16 characters."),
    "two": (
        {"Authorization": f"Bearer {SECRET}", "x-api-key": "EMPTY"},
        "Authorization: a key of 16 characters; x-api-key: the placeholder 'EMPTY'",
    ),
    "prefix alone": ({"Authorization": "Bearer sk-ab"}, "a key of 5 characters."),
}


@pytest.mark.parametrize("name", FORMS)
def test_the_form_of_a_wrong_key_is_named(site: Site, name: str) -> None:
    headers, words = FORMS[name]
    for path in ("/v1/chat/completions", "/v1/messages"):
        answer = site.http.post(path, {"messages": [USER]}, headers)
        assert answer.status_code == 401
        message = answer.json()["error"]["message"]
        assert words in message
        assert "openclaw-rl key" in message, "where the key is found"
        assert "Authorization: Bearer <key>" in message, "what is expected"
        assert SECRET not in message


def test_no_part_of_a_secret_is_echoed(site: Site) -> None:
    for key in (SECRET * 3, f"sk-{SECRET}", f"hf_{SECRET}", f"{SECRET}:{SECRET}", f"${SECRET}"):
        for headers in ({"Authorization": f"Bearer {key}"}, {"Authorization": key}):
            text = site.http.get("/v1/models", headers).text
            for start in range(len(SECRET) - 3):
                assert SECRET[start : start + 4] not in text


WORD = "SWORDFISH"
UNKNOWN_FORMS = (
    f"{WORD} opens the gate",
    f"{WORD.title()} opens the gate",
    f"{WORD}-1 opens",
    WORD,
    f"${WORD}",
    f"${{{WORD}}}",
    f"{{env:{WORD}}}",
    f"%{WORD}%",
    f"$env:{WORD}",
    f"$({WORD})",
    f"`{WORD}`",
    f"<{WORD}>",
    f"{WORD}...",
    f"~/{WORD}/api_key",
    f"{WORD}:{WORD}",
    f"'{WORD}'",
)


@pytest.mark.parametrize("value", UNKNOWN_FORMS)
def test_a_word_that_may_be_a_password_is_echoed_nowhere(
    site: Site, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    for headers in (
        {"Authorization": value},
        {"Authorization": f"Bearer {value}"},
        {"Authorization": f"Basic {value}"},
        {"Authorization": f"Bearer Bearer {value}"},
        {"x-api-key": value},
        {"api-key": f"Bearer {value}"},
    ):
        answer = site.http.get("/v1/models", headers)
        assert answer.status_code == 401
        for text in (answer.text, caplog.text):
            assert WORD.lower() not in text.lower(), headers


def test_the_variables_that_are_named_are_those_of_the_documentation() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    words = set(re.findall(r"\b[A-Z][A-Z0-9_]+\b", text))
    assert words >= KNOWN_VARIABLES


def test_a_key_with_something_around_it_stays_wrong(site: Site) -> None:
    for value in (f"Bearer Bearer {KEY}", f'Bearer "{KEY}"', KEY, f"Basic {KEY}"):
        assert site.http.get("/v1/models", {"Authorization": value}).status_code == 401
