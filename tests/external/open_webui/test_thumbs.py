"""A thumb in the real Open WebUI arrives on its reply, changes with the person's mind, and is taken back."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.serve.conftest import KEY, Site, Start, empty_store, renderers, start, wait_for

from openclaw_rl.cli.main import cli
from openclaw_rl.connect.feedback.chat_programs import OPEN_WEBUI_HEADERS

__all__ = ["empty_store", "renderers", "start"]
ACCOUNT = {"name": "Ann", "email": "ann@example.com", "password": "Secret-12345"}


class OpenWebui:
    """A running Open WebUI, as its admin."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.token = ""

    def call(self, method: str, path: str, body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=240)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        try:
            raw = None if body is None else json.dumps(body)
            connection.request(method, path, raw, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        assert answer.status == 200, (path, answer.status, content[:500])
        return json.loads(content)

    def answers(self) -> bool:
        try:
            return bool(self.call("GET", "/api/version"))
        except (OSError, AssertionError, ValueError):
            return False

    def ask(self, site: Site, said: str) -> tuple[dict[str, Any], str]:
        """Ask in a new chat. Returns the chat, and the id of the answer in it."""
        site.script.say(said)
        history = {"messages": {}, "currentId": None}
        chat = {"title": "x", "models": ["openclaw"], "history": history, "messages": []}
        chat_id = self.call("POST", "/api/v1/chats/new", {"chat": chat})["id"]
        message = str(uuid.uuid4())
        body = {
            "model": "openclaw",
            "stream": False,
            "messages": [{"role": "user", "content": "hi"}],
            "chat_id": chat_id,
            "id": message,
        }
        self.call("POST", "/api/chat/completions", body)

        def read() -> Any:
            return self.call("GET", f"/api/v1/chats/{chat_id}")

        stored = wait_for(
            read, lambda chat: said in json.dumps(chat["chat"]["history"], ensure_ascii=False)
        )
        return stored, message


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def site(start: Start) -> Site:
    return start()


@pytest.fixture
def webui(site: Site, tmp_path: Path, pytestconfig: pytest.Config) -> Iterator[OpenWebui]:
    port = free_port()
    program = Path(pytestconfig.getoption("--open-webui-env")) / "bin" / "open-webui"
    folder = tmp_path / "open-webui"
    folder.mkdir()
    environment = os.environ | {
        "DATA_DIR": str(folder),
        "WEBUI_SECRET_KEY": "x",
        "OFFLINE_MODE": "true",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": "",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", "--host", "127.0.0.1", "--port", str(port)],
            env=environment,
            stdout=log,
            stderr=log,
        )
    server = OpenWebui(port)
    try:
        # It loads several libraries of models.
        wait_for(server.answers, bool, seconds=900)
        server.token = server.call("POST", "/api/v1/auths/signup", ACCOUNT)["token"]
        yield server
    finally:
        process.terminate()
        process.wait(60)


def connection(site: Site, headers: dict[str, str]) -> dict[str, Any]:
    return {
        "ENABLE_OPENAI_API": True,
        "OPENAI_API_BASE_URLS": [f"{site.url}/v1"],
        "OPENAI_API_KEYS": [KEY],
        "OPENAI_API_CONFIGS": {"0": {"enable": True, "headers": headers}},
    }


def connect(site: Site, webui: OpenWebui, home: Path) -> None:
    """Do by Open WebUI's API what `openclaw-rl connect open-webui` says to do by hand."""
    webui.call("POST", "/openai/config/update", connection(site, OPEN_WEBUI_HEADERS))
    port = site.url.rsplit(":", 1)[1]
    sets = {"home": home, "serve.port": port, "serve.api_key": KEY}
    done = CliRunner().invoke(
        cli, ["connect", "open-webui", *(f"--set={name}={value}" for name, value in sets.items())]
    )
    assert done.exit_code == 0, done.output
    assert "Admin Panel > Functions" in done.stderr
    function = {
        "id": "openclaw_rl",
        "name": "OpenClaw-RL",
        "content": done.stdout,
        "meta": {"description": ""},
    }
    assert webui.call("POST", "/api/v1/functions/create", function)["type"] == "event"
    webui.call("POST", "/api/v1/functions/id/openclaw_rl/toggle")
    names = [model["id"] for model in webui.call("GET", "/api/models")["data"]]
    assert "openclaw" in names


def thumb(chat: dict[str, Any], message: str, rating: int, **more: Any) -> dict[str, Any]:
    """A rating as Open WebUI's page sends it."""
    place = {"message_id": message, "message_index": 2, "chat_id": chat["id"]}
    return {
        "type": "rating",
        "data": {"rating": rating, "model_id": "openclaw", "reason": None} | more,
        "meta": {"arena": False, "model_id": "openclaw"} | place,
        "snapshot": {"chat": chat},
    }


def listed(site: Site) -> list[tuple[str, int, str | None]]:
    data = site.http.get("/v1/feedback").json()["data"]
    return [(item["target"], item["score"], item["comment"]) for item in data]


def arrives(site: Site, *expected: tuple[str, int, str | None]) -> None:
    wait_for(lambda: listed(site), lambda found: found == list(expected))


def test_a_thumb_arrives_changes_and_is_taken_back(
    site: Site, webui: OpenWebui, tmp_path: Path
) -> None:
    connect(site, webui, tmp_path)
    chat, message = webui.ask(site, "Paris is the capital of France.")
    target = site.last().request.id
    assert site.last().request.client_message_id == message
    webui.ask(site, "Rome is the capital of Italy.")
    stored = webui.call("POST", "/api/v1/evaluations/feedback", thumb(chat, message, 1))
    arrives(site, (target, 1, None))
    # The page sends the thumb a second time, with tags of the conversation.
    path = f"/api/v1/evaluations/feedback/{stored['id']}"
    webui.call("POST", path, thumb(chat, message, 1, tags=["geography"]))
    changed = thumb(chat, message, -1, reason="too_verbose", comment="Half of it.")
    webui.call("POST", path, changed)
    arrives(site, (target, -1, "Too verbose. Half of it."))
    webui.call("DELETE", path)
    arrives(site)

    # A connection without the headers: the text finds the reply.
    webui.call("POST", "/openai/config/update", connection(site, {}))
    chat, message = webui.ask(site, "Lisbon is the capital of Portugal.")
    target = site.last().request.id
    assert site.last().request.client_message_id is None
    webui.call("POST", "/api/v1/evaluations/feedback", thumb(chat, message, -1))
    arrives(site, (target, -1, None))
