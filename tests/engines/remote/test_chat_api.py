"""Conversations with images at vLLM: what is asked, what an answer means, and that the prompt is as recorded."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engines.contract_fixtures import BASE, closing
from tests.engines.vllm_server import VllmDouble

from openclaw_rl.common.images.image_prompt import ImageGeneration, ImagePrompt
from openclaw_rl.engines.remote import chat_api, completions_api
from openclaw_rl.engines.remote.vllm import VllmEngine
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.serve.images.image_header import ImageHeader, read_header
from openclaw_rl.settings.load import EngineConfig
from openclaw_rl.types import Chunk, Sampling

URL = "data:image/png;base64,AAAA"
IMAGE = {"type": "image", "sha256": "ab", "media_type": "image/png", "width": 1, "height": 1}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CONVERSATION = ImagePrompt(
    messages=[
        {"role": "developer", "content": "Be brief.", "instructions": True},
        {"role": "user", "content": ["see", {"type": "input_text", "text": "this"}, IMAGE]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "thinking": "Hm."},
        {"role": "tool", "tool_call_id": "c", "content": [IMAGE], "is_error": True},
    ],
    tools=[{"type": "function", "function": {"name": "f"}}],
    variables={"enable_thinking": False},
    images={"ab": URL},
)
PROMPT_IDS = [5, 6, 7]


def generation(ids: list[int] = PROMPT_IDS, **more: Any) -> ImageGeneration:
    sampling = Sampling(temperature=0.7, max_tokens=4, top_k=3, seed=4)
    given = {
        "id": "g",
        "version": 0,
        "sampling": sampling,
        "stop_token_ids": (2,),
        "prompt": CONVERSATION,
    }
    return ImageGeneration(**(given | more), prompt_ids=np.array(ids, dtype=np.int32))


def event(first: bool = False, **choice: Any) -> bytes:
    return json.dumps(
        {"choices": [choice]} | ({"prompt_token_ids": PROMPT_IDS} if first else {})
    ).encode()


def logprobs(*pairs: tuple[int, float], top: dict[int, float] | None = None) -> dict[str, Any]:
    tops = [{"token": f"token_id:{i}", "logprob": lp} for i, lp in (top or {}).items()]
    return {
        "content": [
            {"token": f"token_id:{i}", "logprob": lp, "top_logprobs": tops} for i, lp in pairs
        ]
    }


def test_the_engine_gets_roles_parts_and_images_that_it_knows() -> None:
    messages = chat_api.encode_messages(CONVERSATION)
    fields = chat_api.streaming_fields(generation(top_logprobs=2), model="m", limit=9)
    body = json.loads(chat_api.encode_body(fields, messages))
    image = {"type": "image_url", "image_url": {"url": URL}}
    texts = [{"type": "text", "text": text} for text in ("see", "this")]
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [*texts, image]},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning": "Hm."},
        {"role": "tool", "tool_call_id": "c", "content": [image]},
    ]
    expected = {
        "tools": CONVERSATION.tools,
        "tool_choice": "none",  # the gateway parses the calls
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": 9,
        "stop_token_ids": [2],
        "ignore_eos": True,
        "temperature": 0.7,
        "top_k": 3,
        "seed": 4,
        "logprobs": True,
        "top_logprobs": 2,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
        "stream": True,
    }
    assert {key: body.get(key) for key in expected} == expected
    assert "prompt" not in body
    asked = json.loads(chat_api.encode_body(chat_api.tokenize_fields("m", CONVERSATION), messages))
    assert asked == {
        key: body[key] for key in ("model", "messages", "tools", "chat_template_kwargs")
    }


def test_events_are_those_of_a_text_reply() -> None:
    decode = chat_api.ChatEventDecoder(np.array(PROMPT_IDS))
    raw = [
        event(first=True, delta={"role": "assistant"}),
        event(token_ids=[8, 9], logprobs=logprobs((8, -0.5), (9, -1.0), top={4: -2.0, 8: -0.5})),
        event(token_ids=[2], logprobs=logprobs((2, -0.1), top={2: -0.1}), finish_reason="stop"),
        b'{"choices": [], "usage": {"prompt_tokens_details": {"cached_tokens": 3}}}',
    ]
    events = [decode(one) for one in raw]
    assert completions_api.chunk_from_events(events, 2) == Chunk(
        token_ids=(8, 9, 2),
        logprobs=(-0.5, -1.0, -0.1),
        top=(((8, -0.5), (4, -2.0)),) * 2 + (((2, -0.1),),),
        finish="stop",
    )
    assert completions_api.cached_prompt_tokens(events[-1]) == 3


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (
            b'{"choices": [{}], "prompt_token_ids": [5, 6]}',
            "2 prompt tokens that differ from the 3",
        ),
        (b'{"choices": [{"token_ids": [8]}]}', "0 prompt tokens that differ from the 3"),
        (b'{"choices": [{"token_ids": "?"}]}', "not a chat completion"),
        (b'{"error": {"message": "too long"}}', "too long"),
    ],
)
def test_a_prompt_that_the_server_tokenized_differently_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(EngineError, match=words):
        chat_api.ChatEventDecoder(np.array(PROMPT_IDS))(raw)
    with pytest.raises(EngineGone, match="EngineCore"):
        chat_api.ChatEventDecoder(np.array(PROMPT_IDS))(
            b'{"error": {"message": "EngineCore encountered an issue"}}'
        )


def test_the_probe_is_an_image() -> None:
    url = chat_api.probe_prompt().images["probe"]
    assert read_header(base64.b64decode(url.split(",")[1])) == ImageHeader("image/png", 64, 64)


@pytest.mark.parametrize("answer", [None, [], {}, {"tokens": []}, {"tokens": ["a"]}])
def test_an_answer_without_ids_is_refused(answer: Any) -> None:
    with pytest.raises(EngineError, match="expected a vLLM server"):
        chat_api.rendered_ids(answer)


def run_with(
    double: VllmDouble, folder: Path, body: Callable[[VllmEngine], Awaitable[None]]
) -> None:
    async def main() -> None:
        async with closing(
            VllmEngine(double.http(), EngineConfig(backend="vllm"), folder=folder)
        ) as engine:
            await body(engine)

    asyncio.run(asyncio.wait_for(main(), 300))


def test_a_reply_to_an_image(vllm_double: VllmDouble, tmp_path: Path) -> None:
    vllm_double.reads_images = True

    async def body(engine: VllmEngine) -> None:
        assert (await engine.info()).images
        ids = await engine.render_images(CONVERSATION)
        assert ids.tolist() == vllm_double.rendered
        await engine.load([BASE])
        text = [c async for c in engine.generate(generation(ids.tolist()))]
        assert text[-1].finish == "length"
        assert text[-1].cached == len(ids) - 1
        sampled = [i for chunk in text for i in chunk.token_ids]
        expected = [vllm_double.engine.token_logprob(i, 0, 0.7) for i in sampled]
        assert [lp for chunk in text for lp in chunk.logprobs] == pytest.approx(expected)
        with pytest.raises(EngineError, match="differ from the 2 that it rendered before"):
            _ = [c async for c in engine.generate(generation([1, 2]))]

    run_with(vllm_double, tmp_path, body)


class WatchedImages(dict[str, str]):
    """Images that note the thread in which each is read."""

    def __init__(self, images: dict[str, str]) -> None:
        super().__init__(images)
        self.readers: list[threading.Thread] = []

    def __getitem__(self, digest: str) -> str:
        self.readers.append(threading.current_thread())
        return super().__getitem__(digest)


def test_a_large_image_is_encoded_once_for_all_choices_and_beside_the_event_loop(
    vllm_double: VllmDouble, tmp_path: Path
) -> None:
    vllm_double.reads_images = True
    url = "data:image/png;base64," + "A" * 2**19
    images = WatchedImages({"ab": url})
    prompt = ImagePrompt(
        messages=[{"role": "user", "content": [IMAGE]}], variables={}, images=images
    )

    async def body(engine: VllmEngine) -> None:
        ids = await engine.render_images(prompt)
        await engine.load([BASE])
        for choice in ("a", "b", "c"):
            asked = generation(ids.tolist(), id=choice, prompt=prompt)
            assert [c async for c in engine.generate(asked)][-1].finish == "length"
        assert len(images.readers) == 1
        assert images.readers[0] is not threading.current_thread()

    run_with(vllm_double, tmp_path, body)
    asked = [
        request
        for path, request in vllm_double.requests
        if "messages" in request and "chat" in path
    ]
    image = {"type": "image_url", "image_url": {"url": url}}
    assert [request["messages"] for request in asked] == [
        [{"role": "user", "content": [image]}]
    ] * 3


def test_a_server_of_a_text_model_says_so(vllm_double: VllmDouble, tmp_path: Path) -> None:
    async def body(engine: VllmEngine) -> None:
        assert not (await engine.info()).images
        with pytest.raises(EngineError, match="is not a multimodal model"):
            await engine.render_images(CONVERSATION)

    run_with(vllm_double, tmp_path, body)
