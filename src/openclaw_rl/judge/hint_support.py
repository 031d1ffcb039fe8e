"""Whether the person's own words support a hint, and whether it has anything that others said or that nobody wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import message_text, normalise_text, visible_text
from openclaw_rl.common.rules.foreign_blocks import LEFT_OUT
from openclaw_rl.common.rules.foreign_words import foreign_kind
from openclaw_rl.common.rules.lesson_topics import MAX_WISH_CHARS, HintTopics
from openclaw_rl.common.rules.speakers import own_words, words_of_others
from openclaw_rl.common.rules.word_runs import repeats_whole, runs_of, words_of
from openclaw_rl.types import Message, Reaction, Verdict, Vote

MAX_WORDS_CHARS = 240
"""Characters of the person's words that are kept with a hint."""
MIN_ECHO_SHARE = 0.5
"""Share of a hint's runs of words that others said, from which it repeats them."""
MIN_NAMED_SHARE = 0.8
"""Share of the words that a model names as the person's, which have to be his."""
_READ_CHARS = 65_536


class HintSupport:
    """Checks the hints on one turn. `messages`: the conversation before the reply. `topics`: of the rules."""

    def __init__(
        self, reaction: Reaction, topics: HintTopics, messages: Sequence[Message] = ()
    ) -> None:
        self.own = own_texts(reaction)
        self._topics = topics
        self._own_words = set(words_of("\n".join(self.own)))
        self._own_text = "\n".join([*self.own, *_asked_before(messages)])
        others = "\n".join(_texts_of_others((*messages, *reaction.messages)))
        self._others = head_and_tail(others, _READ_CHARS)
        self._runs = set(runs_of(self._others))

    def keep_supported(self, verdict: Verdict) -> Verdict:
        """Return a verdict without the hints that nothing supports; each vote says why it lost its own."""
        if not verdict.hints and not any(vote.hint for vote in verdict.votes):
            return verdict
        votes = tuple(map(self.check_vote, verdict.votes))
        remaining = [hint for hint in verdict.hints if self.find_refusal(hint) is None]
        return replace(verdict, votes=votes, hints=tuple(remaining))

    def check_vote(self, vote: Vote) -> Vote:
        """Return a vote with the person's words that support its hint, or without a hint that nothing supports.

        A vote whose hint repeats what others said was given by their words: it says nothing.
        """
        if not vote.hint:
            return vote
        reason = self.find_refusal(vote.hint)
        if reason is not None:
            return self._without_hint(vote, reason)
        words = self.find_words(vote.hint, vote.words)
        if words is None:
            return self._without_hint(vote, "the words that it names are not the person's")
        return replace(vote, words=words)

    def _without_hint(self, vote: Vote, reason: str) -> Vote:
        score = None if self._is_of_others(vote) else vote.score
        shown = f"{vote.reason} [hint dropped: {reason}]".strip()
        return replace(vote, score=score, hint=None, words=None, reason=shown)

    def _is_of_others(self, vote: Vote) -> bool:
        return any(self._repeats_others(text) for text in (vote.hint, vote.words) if text)

    def find_refusal(self, hint: str) -> str | None:
        """Return why a hint is refused, in words that quote nothing; None if it is not."""
        if not self.own:
            return "no words of the person support it"
        if self._topics.wished_words(self.own, hint) is not None:
            return None
        if self._repeats_others(hint):
            return "it repeats what others said"
        kind = foreign_kind(hint, self._own_text, self._others)
        return None if kind is None else f"it has {kind} that the person did not write"

    def find_words(self, hint: str, named: str | None = None) -> str | None:
        """Return the person's words for a hint; None if nothing supports it.

        Those in which a rule reads it, else those that its author names; all of them if he names none.
        """
        words = self._topics.wished_words(self.own, hint)
        if words is None and named is not None:
            words = " ".join(named.split()) if self._are_own(named) else ""
        if words is None:
            words = " / ".join(self.own)
        return words[:MAX_WORDS_CHARS] or None

    def _are_own(self, named: str) -> bool:
        words = words_of(named)
        return sum(word in self._own_words for word in words) >= max(
            1.0, MIN_NAMED_SHARE * len(words)
        )

    def _repeats_others(self, hint: str) -> bool:
        """Return whether most of a hint, or all of a short one, is what others said and the person did not."""
        if set(words_of(hint)) <= self._own_words:
            return False
        if repeats_whole(hint, self._others):
            return True
        runs = list(runs_of(hint))
        return bool(runs) and sum(run in self._runs for run in runs) >= MIN_ECHO_SHARE * len(runs)


def own_texts(reaction: Reaction) -> list[str]:
    """Return the person's own words in a reaction: messages, comments and corrections, without what he reports."""
    texts = [visible_text(one) for one in reaction.messages if one.get("role") == "user"]
    for feedback in reaction.feedback:
        texts += filter(None, (feedback.comment, feedback.correction))
    own = []
    for text in texts:
        words = own_words(head_and_tail(normalise_text(text), MAX_WISH_CHARS))
        own.append(words.replace(LEFT_OUT, " ").strip())
    return [text for text in own if text]


def _asked_before(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the person's own words in the conversation before the reply."""
    for message in messages:
        if message.get("role") == "user":
            yield own_words(head_and_tail(visible_text(message), MAX_WISH_CHARS))


def _texts_of_others(messages: Sequence[Message]) -> Iterator[str]:
    for message in messages:
        role = message.get("role")
        if role == "user":
            yield from words_of_others(head_and_tail(visible_text(message), MAX_WISH_CHARS))
        elif role in ("tool", "function"):
            yield head_and_tail(message_text(message), MAX_WISH_CHARS)
