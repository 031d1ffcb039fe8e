"""Prompts with images: the engine renders them, because only its processor knows how many tokens an image takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openclaw_rl.common.images.image_prompt import ImagePrompt
from openclaw_rl.errors import EngineError, EngineGone
from openclaw_rl.protocols import ImageEngine
from openclaw_rl.render.renderer import RenderedPrompt, Renderer
from openclaw_rl.serve.chat_request import ChatRequest, ReplyFailed, field_error
from openclaw_rl.serve.message_features import MessageFeatures, ToolFeatures

_CONTROL_TOKEN = (
    "has the text of a control token beside an image, and the engine would read it as that token. Remove the text or "
    "the image, or let such text act (serve.special_tokens: untrainable)."
)


class ImageRenderer:
    """Renders conversations with images by the engine."""

    def __init__(self, engine: ImageEngine, renderer: Renderer) -> None:
        self._engine = engine
        self._renderer = renderer

    async def render_prompt(
        self, request: ChatRequest, features: Sequence[MessageFeatures], tools: ToolFeatures
    ) -> tuple[RenderedPrompt, ImagePrompt]:
        """Return the prompt as the engine renders it, and the conversation to send to it.

        Raises `RequestError` if the engine refuses the conversation, `ReplyFailed` if it does not answer.
        """
        if request.prefix is not None:
            raise field_error(
                request.prompt_field,
                "a reply cannot continue a message of the client beside an image.",
            )
        contents = [f.template_message.get("content") for f in features]
        joined = [_join_texts(content) for content in contents if isinstance(content, list)]
        texts = (
            [f.template_message for f in features],
            tools.template_tools,
            request.template_variables,
            joined,
        )
        if self._renderer.has_literal_token(texts):
            raise field_error(request.prompt_field, _CONTROL_TOKEN)
        self._renderer.template.check_variables(request.template_variables)
        conversation = ImagePrompt(
            messages=request.messages,
            tools=request.tools,
            variables=request.template_variables,
            images=request.images,
        )
        try:
            ids = await self._engine.render_images(conversation)
        except EngineGone as error:
            raise ReplyFailed(
                f"{error}. Repeat the request", status=503, code="engine_gone"
            ) from error
        except EngineError as error:
            if not error.blames_request:
                raise ReplyFailed(str(error), status=500, code="engine_error") from error
            raise field_error(
                request.prompt_field, f"the engine refuses this conversation with images: {error}"
            ) from error
        return RenderedPrompt(
            prompt_ids=ids, thinking=self._renderer.opens_thinking(ids)
        ), conversation


def _join_texts(parts: Sequence[Any]) -> str:
    """Return the texts of a message as one, because the template may write them one after the other."""
    return "".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))
