"""Client that a rollout uses for one conversation with the policy, through the gateway."""

from __future__ import annotations

import base64
import io
import logging
from typing import Any

import aiohttp

from openclaw_rl.errors import OpenClawError

log = logging.getLogger("openclaw_rl.rollouts")


class PolicyClient:
    """One conversation. Keeps the history, so that each prompt is the reaction to the previous reply."""

    def __init__(
        self, http: aiohttp.ClientSession, url: str, *, name: str, session: str, most: int
    ) -> None:
        """`http`: session with the key in its headers; `name`: model name; `most`: limit on the replies."""
        self._http = http
        self._url = url
        self._name = name
        self._max_replies = most
        self.session = session
        self.messages: list[dict[str, Any]] = []
        self.replies = 0
        self._last_reply_id: str | None = None

    async def generate(
        self, prompt: str, image: Any = None, *, side: bool = False, max_tokens: int | None = None
    ) -> str:
        """Return the reply to `prompt` at temperature 1. `image`: a PIL image or PNG bytes.

        `side`: send the prompt without the history; such traffic is never trained on. Raises `OpenClawError` if the
        gateway refuses, or above the limit on the replies (`rollout.max_turns`).
        """
        if not side and self.replies >= self._max_replies:
            raise OpenClawError(
                f"more than {self._max_replies} replies in one rollout (rollout.max_turns)"
            )
        asked = {
            "role": "user",
            "content": prompt if image is None else _content_with_image(prompt, image),
        }
        messages = [asked] if side else [*self.messages, asked]
        body: dict[str, Any] = {"model": self._name, "messages": messages, "temperature": 1.0}
        headers = {"X-Turn-Type": "side"} if side else {"X-Session-Id": self.session}
        body |= {"max_tokens": max_tokens} if max_tokens else {}
        answer = await self._post_json("chat/completions", body, headers)
        reply = str(answer["choices"][0]["message"]["content"] or "")
        log.debug(
            "%s: reply %s of %d characters to %d messages",
            self.session,
            answer["id"],
            len(reply),
            len(messages),
        )
        if not side:
            self.messages = [*messages, {"role": "assistant", "content": reply}]
            self._last_reply_id = str(answer["id"])
            self.replies += 1
        return reply

    async def feedback(self, score: int | None = None, comment: str | None = None) -> None:
        """Send feedback on the last reply, which has no reaction in the conversation: +1, 0 or -1, and a comment."""
        if self._last_reply_id is None:
            raise OpenClawError("feedback before the first reply")
        values = {"id": self._last_reply_id, "score": score, "comment": comment}
        await self._post_json(
            "feedback", {name: value for name, value in values.items() if value is not None}, {}
        )

    async def _post_json(
        self, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any]:
        try:
            async with self._http.post(
                f"{self._url}/v1/{path}", json=body, headers=headers
            ) as response:
                answer: dict[str, Any] = await response.json()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise OpenClawError(
                f"{self._url}: the gateway did not answer ({type(error).__name__}: {error})"
            ) from error
        if response.status != 200:
            message = answer.get("error", {}).get("message", answer)
            raise OpenClawError(f"the gateway refused ({response.status}): {message}")
        return answer


def _content_with_image(prompt: str, image: Any) -> list[dict[str, Any]]:
    if not isinstance(image, bytes):
        buffer = io.BytesIO()
        image.save(buffer, format="PNG")
        image = buffer.getvalue()
    url = "data:image/png;base64," + base64.b64encode(image).decode()
    return [{"type": "text", "text": prompt}, {"type": "image_url", "image_url": {"url": url}}]
