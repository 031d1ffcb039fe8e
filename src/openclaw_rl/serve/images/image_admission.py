"""Read the images of a request and put their digests in their place, or refuse them with the reason.

The dialects return each image as a part `{"type": "image", "url": ...}`. Only data URLs are accepted: the gateway
fetches nothing for a client, because it can reach addresses that the client cannot. For a model that reads text only,
a placeholder replaces an image in a tool result, because an error would end the agent's run. Any other is refused in
the newest message; in an earlier one a placeholder replaces it, because an error would end the conversation.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from openclaw_rl.common.images.image_prompt import IMAGE_TYPE, UNSEEN_IMAGES, digest_part
from openclaw_rl.common.large_requests import stop_if_cancelled
from openclaw_rl.errors import RequestError
from openclaw_rl.render.degradation import Degradation
from openclaw_rl.serve.chat_request import ChatRequest, field_error
from openclaw_rl.serve.dialects.validation import TOOL_ROLES, image_placeholder
from openclaw_rl.serve.images.image_header import read_header
from openclaw_rl.store.rows import to_json
from openclaw_rl.types import Message

MAX_IMAGES = 64
"""Images of one request, the earlier ones of its conversation included."""
MAX_IMAGE_BYTES = 20 * 2**20
MAX_IMAGE_PIXELS = 7680 * 4320
# Of all images of a request: 64 of 1920 x 1080.
MAX_REQUEST_PIXELS = 4 * MAX_IMAGE_PIXELS
# Pixels.
MAX_IMAGE_SIDE = 16384
_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,", re.ASCII | re.IGNORECASE)
# Of a URL in an error message.
_SHOWN_CHARS = 60
_UNSEEN_IMAGE = "(Here was an image, which this model cannot see.)"
_STORED_IMAGE = (
    "the stored conversation has an image, and images are stored as digests only. Send the "
    "whole conversation instead."
)


def find_images(messages: Sequence[Message]) -> list[int]:
    """Return the indexes of the messages that have images."""
    indexes = []
    for index, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list) and any(map(_is_image, content)):
            indexes.append(index)
    return indexes


def admit_images(request: ChatRequest, refusal: str | None) -> ChatRequest:
    """Return the request with a digest in the place of each image, and the images beside its messages.

    `refusal`: why the model or its engine reads no images, or None. Raises `RequestError` for an image of the newest
    message that cannot be read, is too large, or may not be sent to this model; one of an earlier message is replaced.
    """
    with_images = find_images(request.messages)
    if not with_images:
        return request
    reader = _ImageReader(request.prompt_field)
    messages = list(request.messages)
    raw = list(request.raw)
    newest = len(messages) - request.newest_count
    for n in with_images:
        messages[n] = _admit_message(messages[n], reader, refusal, is_newest=n >= newest)
        # The key of caches: the same bytes may be read in another way once the engine has changed.
        if raw:
            raw[n] = to_json(messages[n])
    are_results = {messages[n].get("role") in TOOL_ROLES for n in with_images}
    ignored = (UNSEEN_IMAGES,) if refusal and True in are_results else ()
    is_degraded = reader.is_replaced or (refusal is not None and False in are_results)
    return replace(
        request,
        messages=messages,
        raw=raw,
        images=reader.urls,
        ignored_fields=(*request.ignored_fields, *ignored),
        degraded=(*request.degraded, *([Degradation.IMAGE] if is_degraded else [])),
    )


def _admit_message(
    message: Message, reader: _ImageReader, refusal: str | None, *, is_newest: bool
) -> Message:
    if refusal is None:
        return reader.read(message, is_earlier=not is_newest)
    if is_newest and message.get("role") not in TOOL_ROLES:
        raise field_error(reader.field, refusal, code="image_not_supported")
    return _replace_images(message)


def _image_parts(message: Message) -> list[Any]:
    content = message.get("content")
    return content if isinstance(content, list) else []


def _is_image(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == IMAGE_TYPE


def _replace_images(message: Message) -> Message:
    text = _placeholder(message)
    return {
        **message,
        "content": [text if _is_image(part) else part for part in _image_parts(message)],
    }


def _placeholder(message: Message) -> dict[str, Any]:
    is_result = message.get("role") in TOOL_ROLES
    return {"type": "text", "text": image_placeholder(IMAGE_TYPE) if is_result else _UNSEEN_IMAGE}


class _ImageReader:
    """Reads the images of one request. `urls`: digest -> data URL; `is_replaced`: an earlier one cannot be read."""

    def __init__(self, field: str) -> None:
        self.field = field
        self._count = 0
        self._pixels = 0
        self.urls: dict[str, str] = {}
        self.is_replaced = False

    def read(self, message: Message, *, is_earlier: bool) -> Message:
        """Return the message with digests. Raises `RequestError` for an image, unless the message `is_earlier`."""
        parts: list[Any] = []
        for part in _image_parts(message):
            if not _is_image(part):
                parts.append(part)
                continue
            try:
                parts.append(self._read_part(part))
            except RequestError:
                if not is_earlier or "sha256" in part:
                    raise
                self.is_replaced = True
                parts.append(_placeholder(message))
        return {**message, "content": parts}

    def _read_part(self, part: Mapping[str, Any]) -> dict[str, Any]:
        stop_if_cancelled()
        self._count += 1
        if self._count > MAX_IMAGES:
            raise self._error(
                f"expected at most {MAX_IMAGES} images in a request. Leave out the oldest"
            )
        if "sha256" in part:
            raise field_error(self.field, _STORED_IMAGE)
        url = part.get("url")
        if not isinstance(url, str) or (head := _DATA_URL.match(url)) is None:
            raise self._error(_url_problem(url))
        encoded = url[head.end() :]
        if len(encoded) // 4 * 3 > MAX_IMAGE_BYTES + 2:
            raise self._error(
                f"it has {len(encoded) // 4 * 3} bytes; expected at most {MAX_IMAGE_BYTES}"
            )
        data = self._decode(encoded)
        header = read_header(data)
        if header is None:
            raise self._error("its bytes are no PNG, JPEG, GIF or WebP image")
        self._check_size(header.width, header.height)
        digest = sha256(data).hexdigest()
        self.urls[digest] = f"data:{header.media_type};base64,{encoded}"
        return digest_part(digest, header.media_type, (header.width, header.height))

    def _decode(self, encoded: str) -> bytes:
        try:
            return binascii.a2b_base64(encoded.encode("ascii"), strict_mode=True)
        except (binascii.Error, UnicodeEncodeError) as error:
            raise self._error(f"its data URL is no valid base64 ({error})") from None

    def _check_size(self, width: int, height: int) -> None:
        if (
            min(width, height) < 1
            or max(width, height) > MAX_IMAGE_SIDE
            or width * height > MAX_IMAGE_PIXELS
        ):
            raise self._error(
                f"it has {width} x {height} pixels; expected 1 to {MAX_IMAGE_SIDE} on a side, and at most "
                f"{MAX_IMAGE_PIXELS} in all. Scale it down"
            )
        pixels = self._pixels + width * height
        if pixels > MAX_REQUEST_PIXELS:
            raise self._error(
                f"with those before it, it has {pixels} pixels; expected at most {MAX_REQUEST_PIXELS} in a "
                "request. Scale them down, or leave out the oldest"
            )
        self._pixels = pixels

    def _error(self, problem: str) -> RequestError:
        return field_error(self.field, f"image {self._count}: {problem}.")


def _url_problem(url: Any) -> str:
    if not isinstance(url, str) or not url:
        return "expected its bytes as a data URL; a file id is unknown here"
    return (
        f"expected a data URL (data:image/png;base64,...), got {url[:_SHOWN_CHARS]!r}; the gateway fetches nothing for "
        "a client, because it would reach addresses of its own network. Send the bytes"
    )


def text_only_reason(
    model: str, *, folder_problem: str | None, engine: str, reads_images: bool
) -> str | None:
    """Return why images cannot be sent to the model, and what to do instead; None if they can.

    `folder_problem`: `ModelFiles.image_problem`. `engine`: its backend.
    """
    if folder_problem is None and reads_images:
        return None
    problem = (
        f"reads text only ({folder_problem})"
        if folder_problem
        else f"is served by {engine}, which takes no images"
    )
    advice = (
        "a model that reads images" if folder_problem else "the model with vLLM (engine.backend)"
    )
    return (
        f"got an image, but the model {model!r} {problem}: send text instead, such as the accessibility "
        f"tree of a page, or serve {advice}."
    )
