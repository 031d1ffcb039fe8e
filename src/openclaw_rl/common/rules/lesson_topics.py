"""Topics of lessons and of wishes, by the rules: which hints say the same, and what contradicts what."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from openclaw_rl.common.client_patterns import head_and_tail
from openclaw_rl.common.message_hash import message_text, normalise_text, strip_time_stamp
from openclaw_rl.common.rules.rule_files import Rule, RuleFile, load_rule_files, rules_path
from openclaw_rl.common.rules.speakers import own_words
from openclaw_rl.common.rules.stated_scope import StatedScope, names_subject
from openclaw_rl.errors import ConfigError
from openclaw_rl.types import Message

log = logging.getLogger(__name__)
# With "3.5" and "node.js" in one piece.
_SENTENCE = re.compile(r"(?:[^.!?。！？\n]|[.!?](?=\S))+[.!?。！？]*")
MAX_READ_SENTENCES = 64
"""Sentences of a text in which the words of a wish are searched."""
MAX_WISH_CHARS = 8_192
"""Characters of a message in which wishes are searched: what stands between its head and its tail was pasted."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """Wishes of a message. `hints`: topic -> what it says about the reply before it, where nothing opposes it."""

    topics: frozenset[str] = frozenset()
    hints: Mapping[str, str] = field(default_factory=dict)


class HintTopics:
    """Topics of the hints of the rules."""

    def __init__(self, files: Sequence[RuleFile]) -> None:
        self._files = files
        rules = [rule for file in files for rule in file.rules if rule.hint]
        self._by_hint = {normalise_lesson(str(rule.hint)): rule for rule in rules}

    def find_rule(self, text: str, *, as_reaction: bool = False) -> Rule | None:
        """Return the rule with this hint. `as_reaction`: else the first with a hint that matches it as a message."""
        rule = self._by_hint.get(normalise_lesson(text))
        if rule is not None or not as_reaction:
            return rule
        matching = (
            rule for file in self._files for rule in file.matching_rules([("user", text)], "")
        )
        return next((rule for rule in matching if rule.hint and rule.topic), None)

    def has_hint(self, text: str) -> bool:
        """Return whether a text is the hint of a rule, without regard to case, white space and its final mark."""
        return normalise_lesson(text) in self._by_hint

    def wished_words(self, texts: Iterable[str], hint: str) -> str | None:
        """Return the sentence in a person's texts in which a rule reads the wish of a hint; None without one."""
        rule = self.find_rule(head_and_tail(hint, MAX_WISH_CHARS), as_reaction=True)
        if rule is None:
            return None
        sentences = chain.from_iterable(map(_sentences_of, texts))
        return next(filter(partial(self._reads, rule), sentences), None)

    def _reads(self, rule: Rule, text: str) -> bool:
        matching = [
            one for file in self._files for one in file.matching_rules([("user", text)], "")
        ]
        is_same_hint = any(one.hint == rule.hint for one in matching)
        return is_same_hint or rule.topic in {one.topic for one in matching if one.topic}

    def topic_of(self, text: str, topic: str = "") -> str:
        """Return the topic of a lesson: `topic` if it is known, else that of a rule that says the same; or ""."""
        rule = None if topic else self.find_rule(text, as_reaction=True)
        return topic or (rule.topic if rule is not None else None) or ""

    def opposed_hint(self, topic: str, text: str) -> str | None:
        """Return what another wish about the subject of a topic says; None if the rules have none.

        `text`: of the lesson; the wish is of the file, and so in the language, whose rules have it or match it.
        """
        for file in self._files:
            if _has_hint(file, text) or file.matching_rules([("user", text)], ""):
                hint = _opposed_hint(file, topic)
                if hint is not None:
                    return hint
        return None

    def find_scope(self, texts: Iterable[str], hint: str | None) -> StatedScope | None:
        """Return what a person's texts limit the wish with this hint of a rule to; of None, the first limit of any."""
        for text in texts:
            for file in self._files:
                scope = _scope_of_hint(file, text, hint)
                if scope is not None:
                    return scope
        return None

    def without_scopes(self, text: str) -> str:
        """Return a user's text without the words that limit its wishes."""
        for file in self._files:
            text = file.scopes.without_scopes(text)
        return text

    def _without_other_subjects(self, text: str) -> str:
        """Return a text without sentences about a subject that it does not name itself: they are for other replies."""
        asked = self.without_scopes(text)
        for file in self._files:
            for sentence, _, scope in file.stated_scopes(text):
                if scope.subject and not names_subject(asked, scope.subject):
                    text = text.replace(sentence, " ")
        return text

    def may_have_hints(self, message: Message, reply: str) -> bool:
        """Return whether `read_wishes` may find a hint in a message. Takes some microseconds for a short one."""
        text = _wish_text(message)
        return any(file.may_match(text, reply) for file in self._files)

    def read_wishes(self, message: Message, reply: str | None) -> Wishes:
        """Return what a person's message asks for: for its own reply, or of `reply`, the one before it.

        Only the person's own words ask for anything: no quotation, no pasted text, nothing that a tool said.
        `reply`: None if the message is the first one of a conversation, which says nothing about a reply.
        """
        text = self._without_other_subjects(own_words(_wish_text(message)))
        matching: list[Rule] = []
        topics: set[str] = set()
        for file in self._files:
            matching += file.matching_rules([("user", text)], reply or "")
            topics |= file.wished_topics(text)
        topics |= {rule.topic for rule in matching if rule.topic}
        hints = {} if reply is None else _agreed_hints(matching, topics)
        return Wishes(frozenset(topics), hints)


def _sentences_of(text: str) -> list[str]:
    """Return the first sentences of a text, and then all of it."""
    sentences = [*_SENTENCE.findall(text)[:MAX_READ_SENTENCES], text]
    return [" ".join(sentence.split()) for sentence in sentences]


def _wish_text(message: Message) -> str:
    """Return the text of a message in which wishes are searched."""
    return head_and_tail(strip_time_stamp(normalise_text(message_text(message))), MAX_WISH_CHARS)


def _has_hint(file: RuleFile, text: str) -> bool:
    return any(
        rule.hint and normalise_lesson(rule.hint) == normalise_lesson(text) for rule in file.rules
    )


def _agreed_hints(rules: Sequence[Rule], topics: AbstractSet[str]) -> dict[str, str]:
    """Return the hints of the rules by their topics, without those that a topic opposes."""
    hints = {rule.topic or rule.name: rule.hint for rule in rules if rule.hint}
    return {topic: hint for topic, hint in hints.items() if not is_opposed(topic, topics)}


def _opposed_hint(file: RuleFile, topic: str) -> str | None:
    """Return the hint of a rule of the file that wants something else of the subject of a topic."""
    hints = {rule.topic: rule.hint for rule in file.rules if rule.topic and rule.hint}
    opposed = [other for other in hints if is_opposed(topic, {other})]
    return hints[min(opposed)] if opposed else None


def _scope_of_hint(file: RuleFile, text: str, hint: str | None) -> StatedScope | None:
    """Return the first scope that a text states for the wish with this hint; of None, the first of any wish."""
    for _, rest, scope in file.stated_scopes(text):
        if hint is None or _is_wished(file, rest, hint):
            return scope
    return None


def _is_wished(file: RuleFile, text: str, hint: str) -> bool:
    return any(rule.hint == hint for rule in file.matching_rules([("user", text)], ""))


def load_topics(path: str | None) -> HintTopics:
    """Return the topics by the rules of a file or folder, or by the shipped ones; none if they are damaged."""
    try:
        rules, _ = load_rule_files(rules_path(path))
    except ConfigError as error:
        # The judge reports it; replies need no wishes.
        log.warning("wishes in messages are not read: %s", error)
        rules = ()
    return HintTopics(rules)


def is_opposed(topic: str, wished: AbstractSet[str]) -> bool:
    """Return whether a wish wants something else of the subject of a topic."""
    subject = topic.partition("/")[0]
    return bool(subject) and any(
        wish != topic and wish.partition("/")[0] == subject for wish in wished
    )


def is_contradicted(topic: str, wished: AbstractSet[str]) -> bool:
    """Return whether a wish wants something else of the subject of a topic, and none wants what the topic says."""
    return topic not in wished and is_opposed(topic, wished)


def normalise_lesson(text: str) -> str:
    """Return the text without regard to case, white space and its final mark."""
    return " ".join(text.split()).rstrip(".!。").casefold()
