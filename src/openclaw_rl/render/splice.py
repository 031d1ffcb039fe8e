"""Put sampled ids into a prompt that was rendered again: replies that occur verbatim in the text keep their ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from openclaw_rl.render.detokenizer import Detokenizer
from openclaw_rl.render.tokenizer import CachedTokenizer
from openclaw_rl.types import Ids

PromptPiece = str | Ids
"""Part of a prompt: text to tokenize, or sampled ids."""


class SampledReply:
    """A sampled reply without its final stop token. `reasoning`: as it was sent to the client."""

    def __init__(self, ids: Ids, reasoning: str, tokens: CachedTokenizer) -> None:
        self.ids = ids  # [R]
        self.reasoning = reasoning
        self._tokens = tokens

    @cached_property
    def text(self) -> str:
        """Decoded text of the reply. It is spliced only where the rendered prompt has exactly this text."""
        return str(self._tokens.backend.decode(self.ids.tolist(), skip_special_tokens=False))

    def __len__(self) -> int:
        return len(self.ids)


class ReplySplicer:
    """Find sampled replies in prompts. `anchors`: texts that the template writes directly before a reply."""

    def __init__(self, tokens: CachedTokenizer, detokenizer: Detokenizer, anchors: Sequence[str]) -> None:
        self._tokens = tokens
        self._anchors = tuple(anchors) if tokens.is_segmented and detokenizer.is_context_free else ()

    def make_sampled_reply(self, response_ids: Ids, reasoning: str, stops: Collection[int]) -> SampledReply | None:
        if not self._anchors:
            return None
        ended = len(response_ids) > 0 and int(response_ids[-1]) in stops
        ids = response_ids[:-1] if ended else response_ids
        return SampledReply(np.array(ids, dtype=np.int32), reasoning, self._tokens) if len(ids) else None

    def splice(self, text: str, replies: Sequence[SampledReply]) -> list[PromptPiece]:
        if not replies:
            return [text]
        pieces: list[PromptPiece] = []
        place = 0
        spots = self._reply_starts(text)
        for reply in replies:
            found = next((n for n, at in enumerate(spots) if self._is_reply_at(text, reply.text, at)), None)
            if found is not None:
                pieces += [text[place : spots[found]], reply.ids]
                place = spots[found] + len(reply.text)
                spots = [at for at in spots[found + 1 :] if at >= place]
        return [*pieces, text[place:]]

    def _reply_starts(self, text: str) -> list[int]:
        """Return the sorted offsets at which a reply can start."""
        spots = set[int]()
        for anchor in self._anchors:
            at = text.find(anchor)
            while at >= 0:
                spots.add(at + len(anchor))
                at = text.find(anchor, at + 1)
        return sorted(spots)

    def _is_reply_at(self, text: str, reply: str, at: int) -> bool:
        """Whether `reply` is at `at` and a special token follows, so that its last tokens are independent."""
        return text.startswith(reply, at) and self._tokens.is_special_at(text, at + len(reply))
