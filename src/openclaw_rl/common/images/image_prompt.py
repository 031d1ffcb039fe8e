"""Images in messages: the content part by which store and hashes know them, and the call of an engine that reads them.

A part holds the digest of an image, never its bytes. The bytes travel beside the messages until the engine has them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openclaw_rl.types import Generation, Message

IMAGE_TYPE = "image"
"""Type of a content part that stands for an image."""
UNSEEN_IMAGES = "images in tool results (this model cannot see them)"
"""Value of the response header `X-OpenClaw-Ignored` if the model got text in place of images."""


def digest_part(sha256: str, media_type: str, size: tuple[int, int]) -> dict[str, Any]:
    """Return the content part of an image. `sha256`: hex digest of its bytes; `size`: width and height in pixels."""
    return {
        "type": IMAGE_TYPE,
        "sha256": sha256,
        "media_type": media_type,
        "width": size[0],
        "height": size[1],
    }


def image_digest(part: Any) -> str | None:
    """Return the digest of an image that a content part stands for; None for other parts."""
    if not isinstance(part, dict) or part.get("type") != IMAGE_TYPE:
        return None
    digest = part.get("sha256")
    return digest if isinstance(digest, str) else None


def image_digests(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the digest of each image in the messages, in order."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            digest = image_digest(part)
            if digest is not None:
                yield digest


def has_images(messages: Sequence[Message]) -> bool:
    """Return whether a message has an image, so that token ids alone do not hold the prompt."""
    return next(image_digests(messages), None) is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class ImagePrompt:
    """A conversation with images, which the engine renders itself with the model's image processor.

    It equals itself alone, so that an engine can keep its encoded form as long as it lives.
    """

    messages: Sequence[Message]
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any]  # of the chat template
    images: Mapping[str, str]  # digest -> data URL


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageGeneration(Generation):
    """A call of an `ImageEngine`. `prompt_ids`: what it rendered `prompt` to, the places of the images included."""

    prompt: ImagePrompt
