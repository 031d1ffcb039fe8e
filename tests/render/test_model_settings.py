"""The settings of the model decide which tokenizer renders, and what the hub is asked with."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from openclaw_rl.errors import ModelError
from openclaw_rl.render.hint import HintFormat
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, from_flat


def test_another_tokenizer_brings_its_chat_template(tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    shutil.copytree(ModelFiles.from_path(STARTER).folder, folder)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text(encoding="utf-8") + "!", encoding="utf-8")

    def prompt(**flat: str) -> list[int]:
        renderer = Renderer(ModelFiles.from_config(from_flat(flat).model))
        return list(renderer.render([{"role": "user", "content": "hi"}]).prompt_ids)

    assert prompt() != prompt(**{"model.tokenizer": str(folder)})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str | None]]:
    """A hub without models; the keys of its requests."""
    keys: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            keys.append(self.headers["Authorization"])
            self.send_error(404)

        def log_message(self, *_: object) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    monkeypatch.setattr(
        huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}"
    )
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield keys
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(("token", "key"), [(None, None), ("a-token", "Bearer a-token")])
def test_the_hub_is_asked_with_the_token(
    token: str | None,
    key: str | None,
    hub: list[str | None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    with pytest.raises(ModelError, match="downloading it failed"):
        ModelFiles.from_config(
            from_flat({"model.path": "nobody/no-such-model", "model.hf_token": token}).model
        )
    assert set(hub) == {key}


def test_the_format_of_hints_is_that_of_the_model() -> None:
    starter = ModelFiles.from_path("starter")
    assert starter.hint_format is HintFormat.BRACKETED
    unnamed = {key: value for key, value in starter.config.items() if key != "hint_format"}
    assert replace(starter, config=unnamed).hint_format is HintFormat.PARAGRAPH
    with pytest.raises(
        ModelError, match="hint_format 'shouted', expected one of paragraph, bracketed"
    ):
        _ = replace(starter, config=unnamed | {"hint_format": "shouted"}).hint_format
