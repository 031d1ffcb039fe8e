"""Files of the rules judge: regular expressions in YAML, one file for each language. `assets/rules` has the format."""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.common.assets import ASSETS
from openclaw_rl.common.linear_regex import LinearPattern, PatternError, PatternSet
from openclaw_rl.common.rules.stated_scope import MAX_STATED_SCOPES, ScopePatterns, StatedScope
from openclaw_rl.errors import ConfigError

_ROLES_OF_SPEAKER: Mapping[str, tuple[str, ...]] = {
    "user": ("user",),
    "tool": ("tool", "function"),
    "any": ("user", "tool", "function"),
}
_LANGUAGE_KEYS = ("when", "unless")
_PATTERN_KEYS = (*_LANGUAGE_KEYS, "unless_reply")
_WISH_KEYS = frozenset({"asked", "unless", "topics"})
_SCOPE_KEYS = ("session", "before", "after")
# Neither the point of "node.js" nor that of "3.5".
_SENTENCE_ENDS = re.compile(r"[.!?](?=\s|\Z)|[。！？\n]")
_EXPECTED_PATTERN = "text or a list of texts"


def _short_repr(value: Any) -> str:
    """Return some of a value: aliases in YAML can make a small file stand for billions of texts."""
    shortener = reprlib.Repr()
    shortener.maxlevel = 3
    shortener.maxstring = 200
    shortener.maxother = 200
    return shortener.repr(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _is_text_or_none(value: Any) -> bool:
    return value is None or _is_text(value)


def _is_topic(value: Any) -> bool:
    return isinstance(value, str) and all(value.partition("/")[::2])


_RULE_KEYS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_text, "text"),
    "when": (_is_text, _EXPECTED_PATTERN),
    "unless": (_is_text_or_none, _EXPECTED_PATTERN),
    "unless_reply": (_is_text_or_none, _EXPECTED_PATTERN),
    "who": (lambda value: value in tuple(_ROLES_OF_SPEAKER), "user, tool or any"),
    "score": (
        lambda value: value in (None, 1, -1) and not isinstance(value, bool),
        "1, -1 or nothing",
    ),
    "hint": (_is_text_or_none, "text"),
    "topic": (lambda value: value is None or _is_topic(value), "subject/value, e.g. length/short"),
}
"""Keys of a rule, each with a check of its value and a description of valid values."""


@dataclass(frozen=True, slots=True)
class _SearchedText:
    """A message, and the patterns `Rule.when` that match it."""

    role: str
    text: str
    matching: AbstractSet[LinearPattern]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a file."""

    name: str
    when: LinearPattern
    who: str
    score: int | None
    hint: str | None
    # subject/value of the hint
    topic: str | None = None
    unless: LinearPattern | None = None
    unless_reply: LinearPattern | None = None

    def matches_any(self, messages: Sequence[_SearchedText], reply: str) -> bool:
        """Whether the rule matches any message whose role it covers, as a reaction to this reply."""
        roles = _ROLES_OF_SPEAKER[self.who]
        is_matched = any(
            message.role in roles
            and self.when in message.matching
            and not (self.unless is not None and self.unless.matches(message.text))
            for message in messages
        )
        return is_matched and not (self.unless_reply and self.unless_reply.matches(reply))


@dataclass(frozen=True, slots=True, kw_only=True)
class WishPatterns:
    """Patterns of a wish for the reply to a message: a sentence in which `asked` and that of a topic are found."""

    asked: LinearPattern
    topics: Mapping[str, LinearPattern]
    unless: LinearPattern | None = None

    def find_topics(self, text: str) -> set[str]:
        """Return the topics that are asked for."""
        topics: set[str] = set()
        for sentence in _SENTENCE_ENDS.split(text):
            if _is_found(self.asked, self.unless, sentence):
                topics |= self._topics_in(sentence)
        return topics

    def _topics_in(self, sentence: str) -> set[str]:
        return {topic for topic, pattern in self.topics.items() if pattern.matches(sentence)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFile:
    """The rules of one file, and the patterns that recognise the messages of its language.

    `first_patterns`: those by which anything is found, `Rule.when` and those of the scopes.
    """

    rules: tuple[Rule, ...]
    first_patterns: PatternSet
    wishes: WishPatterns | None = None
    scopes: ScopePatterns = field(default_factory=ScopePatterns)
    when: LinearPattern | None = None
    unless: LinearPattern | None = None

    def matching_rules(self, messages: Sequence[tuple[str, str]], reply: str) -> list[Rule]:
        """Return the rules that match any (role, text), in the order of the file.

        Of what a user says, words that state a scope are left out: "shorter for now" is "shorter".
        """
        searched = [self._search(role, text) for role, text in messages]
        searched = [
            message
            for message, (_, text) in zip(searched, messages, strict=True)
            if message.matching and _is_found(self.when, self.unless, text)
        ]
        if not searched:
            return []
        return [rule for rule in self.rules if rule.matches_any(searched, reply)]

    def _search(self, role: str, text: str) -> _SearchedText:
        matching = self.first_patterns.matching(text)
        if role == "user" and not matching.isdisjoint(self.scopes.first_patterns):
            text = self.scopes.without_scopes(text)
            matching = self.first_patterns.matching(text)
        return _SearchedText(role, text, matching)

    def may_match(self, text: str, reply: str) -> bool:
        """Return whether a user's text may state a scope, or match a rule with a hint. Takes some microseconds."""
        matching = self.first_patterns.matching(text)
        if not matching:
            return False
        if not matching.isdisjoint(self.scopes.first_patterns):
            return True
        return any(rule.hint for rule in self.matching_rules([("user", text)], reply))

    def stated_scopes(self, text: str) -> Iterator[tuple[str, str, StatedScope]]:
        """Return the first scopes that a user's text states: (its sentence, the sentence without it, the scope)."""
        return islice(self._scopes_by_sentence(text), MAX_STATED_SCOPES)

    def _scopes_by_sentence(self, text: str) -> Iterator[tuple[str, str, StatedScope]]:
        if not self.scopes.is_found_in(text) or not _is_found(self.when, self.unless, text):
            return
        # One that is repeated says nothing more.
        sentences = dict.fromkeys(_SENTENCE_ENDS.split(text))
        for sentence in sentences:
            for rest, scope in self.scopes.scopes_in(sentence):
                yield sentence, rest, scope

    def wished_topics(self, text: str) -> set[str]:
        """Return the topics that a message asks for in its own reply."""
        if self.wishes is None or not _is_found(self.when, self.unless, text):
            return set()
        return self.wishes.find_topics(text)


def _is_found(when: LinearPattern | None, unless: LinearPattern | None, text: str) -> bool:
    if when is not None and not when.matches(text):
        return False
    return unless is None or not unless.matches(text)


def rules_path(path: str | Path | None) -> Path:
    """Return the file or folder of the rules; of the shipped ones for None."""
    return Path(path or ASSETS / "rules").expanduser()


def load_rule_files(path: Path) -> tuple[tuple[RuleFile, ...], str]:
    """Return the rules of a file, or of all `*.yaml` files of a folder, and the digest of their texts.

    In a folder, the name of a rule begins with the name of its file: `german/thanks`. Raises `ConfigError` with file,
    rule and expected value.
    """
    files = sorted(path.glob("*.yaml")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(
            f"{path}: expected at least one *.yaml file with rules in this folder, got none"
        )
    parsed_files = []
    digest = hashlib.sha256()
    for file in files:
        raw = _read_file(file)
        digest.update(raw.encode())
        parsed = _parse_file(raw, str(file))
        if path.is_dir():
            named = [replace(rule, name=f"{file.stem}/{rule.name}") for rule in parsed.rules]
            parsed = replace(parsed, rules=tuple(named))
        parsed_files.append(parsed)
    return tuple(parsed_files), digest.hexdigest()[:8]


def _read_file(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{file}: the judge's rules cannot be read: {error}. "
            "Set judge.rules_path to a YAML file or a folder of them, or leave it unset for the shipped rules."
        ) from error


@lru_cache(maxsize=32)
def _parse_file(raw: str, source: str) -> RuleFile:
    tree = _parse_yaml(raw, source)
    _check_keys(tree, source)
    parts = _parse_parts(tree.get("parts", {}), f"{source}: `parts`")
    language = {
        key: _compile_wish(tree.get(key), parts, f"{source}: `{key}`") for key in _LANGUAGE_KEYS
    }
    wishes = _parse_wishes(tree.get("wishes"), parts, f"{source}: `wishes`")
    patterns = PatternSet()
    scopes = _parse_scopes(tree.get("scopes"), parts, f"{source}: `scopes`", patterns)
    rules = tuple(_parse_rules(entries, parts, source, patterns))
    patterns.compile()
    return RuleFile(rules=rules, first_patterns=patterns, wishes=wishes, scopes=scopes, **language)


def _parse_wishes(tree: Any, parts: Mapping[str, str], where: str) -> WishPatterns | None:
    if tree is None:
        return None
    if not _is_wish_table(tree):
        raise ConfigError(
            f"{where}: expected `asked`, `topics` (subject/value: pattern) and maybe `unless`; got {_short_repr(tree)}"
        )
    asked = _compile_wish(tree.get("asked"), parts, f"{where}: `asked`")
    unless = _compile_wish(tree.get("unless"), parts, f"{where}: `unless`")
    topics: dict[str, LinearPattern] = {}
    is_complete = asked is not None
    for topic, value in tree["topics"].items():
        pattern = _compile_wish(value, parts, f"{where}: {topic}")
        if pattern is None:
            is_complete = False
        else:
            topics[topic] = pattern
    if asked is None or not is_complete:
        raise ConfigError(f"{where}: `asked` and each topic: expected {_EXPECTED_PATTERN}")
    return WishPatterns(asked=asked, unless=unless, topics=topics)


def _is_wish_table(tree: Any) -> bool:
    if not isinstance(tree, dict) or set(tree) - _WISH_KEYS:
        return False
    topics = tree.get("topics")
    return isinstance(topics, dict) and all(_is_topic(topic) for topic in topics)


def _parse_scopes(
    tree: Any, parts: Mapping[str, str], where: str, patterns: PatternSet
) -> ScopePatterns:
    if tree is None:
        return ScopePatterns()
    if not _is_scope_table(tree):
        raise ConfigError(
            f"{where}: expected `session`, `before` (what stands before a subject) or both, and maybe `after`; "
            f"got {_short_repr(tree)}"
        )
    return ScopePatterns(
        **{
            key: _compile_wish(
                value, parts, f"{where}: `{key}`", None if key == "after" else patterns
            )
            for key, value in tree.items()
        }
    )


def _compile_wish(
    value: Any, parts: Mapping[str, str], where: str, patterns: PatternSet | None = None
) -> LinearPattern | None:
    pattern = _fill_parts({"when": value}, parts)["when"]
    if not _is_text_or_none(pattern):
        raise ConfigError(f"{where}: expected {_EXPECTED_PATTERN}; got {_short_repr(value)}")
    return _compile_pattern(pattern, where, patterns)


def _parse_rules(
    entries: Sequence[Any], parts: Mapping[str, str], source: str, patterns: PatternSet
) -> Iterator[Rule]:
    names: set[str] = set()
    for number, entry in enumerate(entries, 1):
        rule = _parse_rule(_fill_parts(entry, parts), number, source, patterns)
        if rule.name in names:
            raise ConfigError(
                f"{source}: rule {rule.name!r}: expected distinct names, got this one twice"
            )
        names.add(rule.name)
        yield rule


def _fill_parts(entry: Any, parts: Mapping[str, str]) -> Any:
    """Return the entry with each `<name>` in its patterns replaced by the part of that name, in the parts' order."""
    if not isinstance(entry, dict):
        return entry
    out = dict(entry)
    for key in _PATTERN_KEYS:
        pattern = _join_list(out.get(key))
        if isinstance(pattern, str):
            for name, part in parts.items():
                pattern = pattern.replace(f"<{name}>", part)
            out[key] = pattern
    return out


def _join_list(value: Any) -> Any:
    """Return one pattern for a list of alternatives; other values unchanged."""
    if isinstance(value, list) and value and all(_is_text(one) for one in value):
        return f"({'|'.join(value)})"
    return value


def _parse_rule(entry: Any, number: int, source: str, when_patterns: PatternSet) -> Rule:
    where = f"{source}: rule {number}"
    if not isinstance(entry, dict):
        raise ConfigError(
            f"{where}: expected a mapping with {', '.join(_RULE_KEYS)}; got {_short_repr(entry)}"
        )
    values = {"who": "user", **entry}
    for key, (is_valid, expected) in _RULE_KEYS.items():
        value = values.get(key)
        values[key] = value
        if not is_valid(value):
            raise ConfigError(f"{where}: `{key}`: expected {expected}; got {_short_repr(value)}")
        where = f"{source}: rule {number} ({values['name'].strip()})"
    if values["topic"] is not None and values["hint"] is None:
        raise ConfigError(f"{where}: `topic` is of a hint; expected a `hint` beside it")
    unknown = [key for key in entry if key not in _RULE_KEYS]
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected {', '.join(_RULE_KEYS)}")
    if values["score"] is None and values["hint"] is None:
        raise ConfigError(f"{where}: expected a `score`, a `hint` or both; got neither")
    patterns = {
        key: _compile_pattern(
            values[key], f"{where}: `{key}`", when_patterns if key == "when" else None
        )
        for key in _PATTERN_KEYS
    }
    return Rule(
        **values | patterns | {key: values[key] and values[key].strip() for key in ("name", "hint")}
    )


def _compile_pattern(
    pattern: str | None, where: str, patterns: PatternSet | None = None
) -> LinearPattern | None:
    """Compile a pattern, as one of `patterns` if they are given."""
    if pattern is None:
        return None
    compile_one = LinearPattern if patterns is None else patterns.add
    try:
        return compile_one(f"(?i){pattern}")
    except PatternError as error:
        raise ConfigError(
            f"{where}: expected a regular expression of RE2, got {pattern!r}: {error}"
        ) from error
