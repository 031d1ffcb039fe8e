"""Put sampled ids into a prompt that was rendered again: replies that occur verbatim in the text keep their ids."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence
from functools import cached_property

import numpy as np

from openclaw_rl.render.control_tokens import LITERAL_MARK, remove_marks
from openclaw_rl.render.detokenizer import Detokenizer
from openclaw_rl.render.tokenizer import CachedTokenizer
from openclaw_rl.types import Ids

PromptPiece = str | Ids
"""Part of a prompt: text to tokenize, or sampled ids."""
_MARK_PATTERN = re.compile(re.escape(LITERAL_MARK))


class SampledReply:
    """A sampled reply without its final stop token. `reasoning`: as it was sent to the client."""

    def __init__(self, ids: Ids, reasoning: str, detokenizer: Detokenizer) -> None:
        # [R]
        self.ids = ids
        self.reasoning = reasoning
        self._detokenizer = detokenizer

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """Texts of the reply. It is spliced only where the rendered prompt has exactly one of them.

        The second one, if it differs, is without the control tokens that a client is not sent.
        """
        whole = str(
            self._detokenizer.tokenizer.decode(self.ids.tolist(), skip_special_tokens=False)
        )
        if self._detokenizer.skipped_ids.isdisjoint(self.ids.tolist()):
            return (whole,)
        stream = self._detokenizer.new_stream()
        sent = stream.push(self.ids.tolist()) + stream.flush()
        return (whole, sent) if sent else (whole,)

    def __len__(self) -> int:
        return len(self.ids)


class ReplySplicer:
    """Find sampled replies in prompts. `anchors`: texts that the template writes directly before a reply."""

    def __init__(
        self, tokens: CachedTokenizer, detokenizer: Detokenizer, anchors: Sequence[str]
    ) -> None:
        self._tokens = tokens
        self._detokenizer = detokenizer
        self._anchors = (
            tuple(anchors) if tokens.is_segmented and detokenizer.is_context_free else ()
        )

    def make_sampled_reply(
        self, response_ids: Ids, reasoning: str, stops: Collection[int]
    ) -> SampledReply | None:
        if not self._anchors:
            return None
        has_ended = len(response_ids) > 0 and int(response_ids[-1]) in stops
        ids = response_ids[:-1] if has_ended else response_ids
        if not len(ids):
            return None
        return SampledReply(np.array(ids, dtype=np.int32), reasoning, self._detokenizer)

    def splice(self, text: str, replies: Sequence[SampledReply]) -> list[PromptPiece]:
        if not replies:
            return [text]
        pieces: list[PromptPiece] = []
        place = 0
        unmarked = _UnmarkedText(text)
        spots = self._reply_starts(text)
        for reply in replies:
            for n, at in enumerate(spots):
                end = self._find_end(text, unmarked, reply, at)
                if end is not None:
                    pieces += [text[place:at], reply.ids]
                    place = end
                    spots = [later for later in spots[n + 1 :] if later >= end]
                    break
        return [*pieces, text[place:]]

    def _find_end(
        self, text: str, unmarked: _UnmarkedText, reply: SampledReply, at: int
    ) -> int | None:
        """Return where the reply ends if it starts at `at`, else None."""
        ends = (unmarked.find_end(reply_text, at) for reply_text in reply.texts)
        # A special token must follow, so that the reply's last tokens are independent.
        return next(
            (end for end in ends if end is not None and self._tokens.is_special_at(text, end)), None
        )

    def _reply_starts(self, text: str) -> list[int]:
        """Return the sorted offsets at which a reply can start."""
        spots = set[int]()
        for anchor in self._anchors:
            at = text.find(anchor)
            while at >= 0:
                spots.add(at + len(anchor))
                at = text.find(anchor, at + 1)
        return sorted(spots)


class _UnmarkedText:
    """A rendered text without its marks (`control_tokens`), addressed by the offsets of the text with marks."""

    def __init__(self, text: str) -> None:
        self._text = remove_marks(text)
        self._marks = [m.start() for m in _MARK_PATTERN.finditer(text)]
        # Their offsets in `_text`.
        self._unmarked = [at - n * len(LITERAL_MARK) for n, at in enumerate(self._marks)]

    def find_end(self, reply: str, at: int) -> int | None:
        """Return where `reply` ends if it starts at `at`, else None. A mark at its end is part of it."""
        start = at - bisect_left(self._marks, at) * len(LITERAL_MARK)
        if not self._text.startswith(reply, start):
            return None
        end = start + len(reply)
        return end + bisect_right(self._unmarked, end) * len(LITERAL_MARK)
