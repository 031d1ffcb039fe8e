"""Images on a real vLLM, through the gateway; the reference is transformers' own processor and forward pass."""

from __future__ import annotations

import asyncio
import base64
import io
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tests.external.engines.vision_model import (
    CONTEXT,
    IMAGE_TOKEN,
    IMAGE_TOKENS,
    make_vision_model,
)
from tests.serve.conftest import Script, Site
from transformers import AutoProcessor, Idefics3ForConditionalGeneration

from openclaw_rl.engines.registry import connect_engine
from openclaw_rl.engines.remote import vllm_launch
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.reasons import ReasonCode
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config, from_flat
from openclaw_rl.store import turns
from openclaw_rl.store.db import Store
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import start_policies
from openclaw_rl.types import Exchange

READY_SECONDS = 900.0
TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision_model(tmp_path_factory.mktemp("model") / "vision")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, folder: Path, vllm_python: str) -> Config:
    settings = {
        "home": str(tmp_path_factory.mktemp("home")),
        "engine.backend": "vllm",
        "engine.python": vllm_python,
        "engine.max_context": CONTEXT,
        "model.path": str(folder),
    }
    return from_flat(settings)


@pytest.fixture(scope="module")
def site(config: Config, folder: Path) -> Iterator[Site]:
    """A gateway on a vLLM that was started as `openclaw-rl` starts it."""
    environ = vllm_launch.server_environment(config) | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(vllm_launch.server_command(config), env=environ) as server:
        try:
            yield from serve_site(config, folder)
        finally:
            server.terminate()


def serve_site(config: Config, folder: Path) -> Iterator[Site]:
    """Serve from the vLLM at `config.engine_socket`, once it answers."""
    renderer, store = Renderer(ModelFiles.from_path(str(folder))), Store.open(config.store_path)
    with store.write() as conn:
        policies.ensure_root(conn, base=str(folder), identity="test-identity", at=time.time())
        start_policies(conn, config.policy.per)
    engine = connect_engine(config)
    assert isinstance(engine, VllmEngine)
    site = Site(config, renderer, store, engine, Script(renderer))  # type: ignore[arg-type]
    try:
        ready = asyncio.run_coroutine_threadsafe(
            engine.wait_ready(READY_SECONDS), site.loop
        ).result(READY_SECONDS)
        assert ready.images
        yield site
    finally:
        asyncio.run_coroutine_threadsafe(engine.close(), site.loop).result(30)
        site.close()
        store.close()


def picture(color: str) -> Image.Image:
    """A square that no resizing has to pad."""
    return Image.new("RGB", (64, 64), color)


def data_url(image: Image.Image) -> str:
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def user(text: str, *images: Image.Image) -> dict[str, Any]:
    parts = [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in images]
    return {"role": "user", "content": [{"type": "text", "text": text}, *parts]}


def ask(site: Site, messages: list[Any], **more: Any) -> Exchange:
    body = {"messages": messages, "temperature": TEMPERATURE, "max_tokens": 12, "seed": 3} | more
    answer = site.http.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    return site.last()


def reference(
    folder: Path, messages: list[Any], images: list[Image.Image], response: list[int]
) -> tuple[list[int], np.ndarray]:
    """The prompt ids by the processor, and [R] log softmax(logits / T) of the response by a forward pass."""
    processor = AutoProcessor.from_pretrained(folder)
    plain = [m | {"content": [_template_part(p) for p in _parts(m)]} for m in messages]
    text = processor.apply_chat_template(plain, add_generation_prompt=True)
    inputs = processor(text=[text], images=[images], return_tensors="pt")
    model = Idefics3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = inputs.pop("input_ids")
    ids = torch.cat([prompt, torch.tensor([response])], dim=1)
    with torch.no_grad():
        logits = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values=inputs["pixel_values"],
            pixel_attention_mask=inputs["pixel_attention_mask"],
        ).logits[0, prompt.shape[1] - 1 : -1]
    rows = (logits / TEMPERATURE).log_softmax(-1)
    return prompt[0].tolist(), rows.gather(1, torch.tensor(response)[:, None])[:, 0].numpy()


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _template_part(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "image"} if part["type"] == "image_url" else part


def test_a_reply_to_an_image_is_captured_as_it_was_sampled(site: Site, folder: Path) -> None:
    one, two = picture("red"), picture("blue")
    conversation = [
        user("What is this?", one),
        {"role": "assistant", "content": "A dog."},
        user("And this?", two),
    ]
    for stream in (False, True):
        found = ask(site, conversation, stream=stream)
        assert found.reply is not None
        sampled = found.reply.response_ids.tolist()
        assert len(sampled) == 12 or sampled[-1] in site.renderer.stop_token_ids
        prompt, logprobs = reference(folder, conversation, [one, two], sampled)
        assert found.request.prompt_ids.tolist() == prompt
        image = site.renderer.tokenizer.backend.token_to_id(IMAGE_TOKEN)
        assert prompt.count(image) == 2 * IMAGE_TOKENS
        np.testing.assert_allclose(found.reply.logprobs, logprobs, atol=1e-4)
        _, other = reference(folder, conversation, [two, one], sampled)
        assert np.abs(other - logprobs).max() > 1e-3, "the order of the images matters"
        with site.store.read() as conn:
            turn = turns.get(conn, found.request.id)
        assert turn is not None
        assert turn.untrainable_code is ReasonCode.IMAGES


def test_text_goes_as_token_ids(site: Site) -> None:
    """By the gateway's own renderer, and the turn is trained on."""
    messages = [{"role": "user", "content": "hello"}]
    found = ask(site, messages)
    assert found.request.prompt_ids.tolist() == site.renderer.render(messages).prompt_ids.tolist()
    with site.store.read() as conn:
        turn = turns.get(conn, found.request.id)
    assert turn is not None
    assert turn.untrainable is None


def test_a_forced_format_and_choices(site: Site) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"enum": ["cat", "dog"]}}}
    found = ask(site, [user("Which?", picture("red"))], response_format=form, n=2)
    assert found.reply is not None
    assert found.reply.message["content"] in ('"cat"', '"dog"')
    assert found.request.sampling.grammar is not None


def test_what_the_engine_refuses(site: Site) -> None:
    """In its words, as a client's error: the prompt is longer than the context, and the bytes are no whole image."""
    long = {"messages": [user("word " * 3000, picture("red"))]}
    answer = site.http.post("/v1/chat/completions", long)
    assert answer.status_code == 400
    assert "maximum context length" in answer.json()["error"]["message"]
    out = io.BytesIO()
    picture("red").save(out, "PNG")
    cut = "data:image/png;base64," + base64.b64encode(out.getvalue()[:40]).decode()
    message = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": cut}}]}
    answer = site.http.post("/v1/chat/completions", {"messages": [message]})
    assert answer.status_code == 400
    assert "the engine refuses this conversation with images" in answer.json()["error"]["message"]
