"""Files of the rules judge: regular expressions in YAML, one file for each language. `assets/rules` has the format."""

from __future__ import annotations

import hashlib
import re
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import yaml

from openclaw_rl.common.assets import ASSETS, load_yaml
from openclaw_rl.common.linear_regex import (
    LinearPattern,
    MatchingPatterns,
    PatternError,
    PatternSet,
)
from openclaw_rl.common.rules.foreign_blocks import LEFT_OUT
from openclaw_rl.common.rules.speakers import own_words
from openclaw_rl.common.rules.stated_scope import MAX_STATED_SCOPES, ScopePatterns, StatedScope
from openclaw_rl.errors import ConfigError

_ROLES_OF_SPEAKER: Mapping[str, tuple[str, ...]] = {
    "user": ("user",),
    "tool": ("tool", "function"),
    "any": ("user", "tool", "function"),
}
_LANGUAGE_KEYS = ("when", "unless", "others")
_RULE_PATTERN_KEYS = ("when", "unless", "unless_reply")
_PATTERN_KEYS = (*_RULE_PATTERN_KEYS, "others")
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
    matching: MatchingPatterns


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule of a file. `when`: alternatives; one by one, they are searched in a fraction of the time."""

    name: str
    when: tuple[LinearPattern, ...]
    who: str
    score: int | None
    hint: str | None
    topic: str | None = None  # subject/value of the hint
    unless: LinearPattern | None = None
    unless_reply: LinearPattern | None = None

    def matches_any(self, messages: Sequence[_SearchedText], reply: str) -> bool:
        """Whether the rule matches any message whose role it covers, as a reaction to this reply."""
        roles = _ROLES_OF_SPEAKER[self.who]
        is_matched = any(
            message.role in roles
            and message.matching.has_any(self.when)
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
        asked = [
            sentence
            for sentence in _SENTENCE_ENDS.split(text)
            if _is_found(self.asked, self.unless, sentence)
        ]
        return {topic for topic, pattern in self.topics.items() if any(map(pattern.matches, asked))}


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFile:
    """The rules of one file, and the patterns that recognise the messages of its language.

    `first_patterns`: those by which anything is found, `Rule.when` and those of the scopes. `others`: words after which
    a message reports what somebody else said. `roles`: those whose messages a rule is for; the others are not searched.
    """

    rules: tuple[Rule, ...]
    first_patterns: PatternSet
    wishes: WishPatterns | None = None
    scopes: ScopePatterns = field(default_factory=ScopePatterns)
    when: LinearPattern | None = None
    unless: LinearPattern | None = None
    others: LinearPattern | None = None
    roles: frozenset[str] = frozenset()

    def matching_rules(self, messages: Sequence[tuple[str, str]], reply: str) -> list[Rule]:
        """Return the rules that match any (role, text), in the order of the file.

        Of what a user says, words that state a scope are left out: "shorter for now" is "shorter". So are the words of
        others: quotations, and what follows "my boss says".
        """
        messages = [(role, text) for role, text in messages if role in self.roles]
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
        if role == "user":
            text = self._own_words(text)
        matching = self.first_patterns.matching(text)
        if role == "user" and matching.has_any(self.scopes.first_patterns):
            text = self.scopes.without_scopes(text)
            matching = self.first_patterns.matching(text)
        return _SearchedText(role, text, matching)

    def _own_words(self, text: str) -> str:
        text = own_words(text).replace(LEFT_OUT, "").strip()
        report = self.others.partition(text) if self.others is not None else None
        return text if report is None else report[0]

    def may_match(self, text: str, reply: str) -> bool:
        """Return whether a user's text may state a scope, or match a rule with a hint. Takes some microseconds."""
        matching = self.first_patterns.matching(text)
        if not matching:
            return False
        if matching.has_any(self.scopes.first_patterns):
            return True
        return any(rule.hint for rule in self.matching_rules([("user", text)], reply))

    def stated_scopes(self, text: str) -> Iterator[tuple[str, str, StatedScope]]:
        """Return the first scopes that a user's text states: (its sentence, the sentence without it, the scope)."""
        return islice(self._scopes_by_sentence(text), MAX_STATED_SCOPES)

    def _scopes_by_sentence(self, text: str) -> Iterator[tuple[str, str, StatedScope]]:
        if self.scopes.is_found_in(text) and _is_found(self.when, self.unless, text):
            # One that is repeated says nothing more.
            for sentence in dict.fromkeys(_SENTENCE_ENDS.split(text)):
                for rest, scope in self.scopes.scopes_in(sentence):
                    yield sentence, rest, scope

    def wished_topics(self, text: str) -> set[str]:
        """Return the topics that a message asks for in its own reply."""
        if self.wishes is None or not _is_found(self.when, self.unless, text):
            return set()
        return self.wishes.find_topics(text)


def _is_found(when: LinearPattern | None, unless: LinearPattern | None, text: str) -> bool:
    return (when is None or when.matches(text)) and not (
        unless is not None and unless.matches(text)
    )


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
    texts = []
    for file in files:
        try:
            texts.append((file, file.read_text(encoding="utf-8")))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{file}: the judge's rules cannot be read: {error}. "
                "Set judge.rules_path to a YAML file or a folder of them, or leave it unset for the shipped rules."
            ) from error
    return _parse_files(tuple(texts), has_names_of_files=path.is_dir())


@lru_cache(maxsize=8)
def _parse_files(
    texts: tuple[tuple[Path, str], ...], *, has_names_of_files: bool
) -> tuple[tuple[RuleFile, ...], str]:
    """Return the rules of files with these texts, and the digest of the texts."""
    digest = hashlib.sha256()
    parsed_files = []
    for file, raw in texts:
        digest.update(raw.encode())
        parsed = _parse_file(raw, str(file))
        if has_names_of_files:
            rules = tuple(replace(r, name=f"{file.stem}/{r.name}") for r in parsed.rules)
            parsed = replace(parsed, rules=rules)
        parsed_files.append(parsed)
    return tuple(parsed_files), digest.hexdigest()[:8]


@lru_cache(maxsize=32)
def _read_tree(raw: str, source: str) -> dict[Any, Any]:
    """Parse YAML, and check version and keys of the file. Raises `ConfigError`."""
    try:
        tree = load_yaml(raw)
    except (yaml.YAMLError, ValueError) as error:
        # `ValueError`: an invalid date, or a number that is too long.
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    except RecursionError:
        raise ConfigError(
            f"{source}: nested too deeply. Expected `version: 1` and a list `rules:`"
        ) from None
    if not isinstance(tree, dict):
        raise ConfigError(
            f"{source}: expected a mapping with `version: 1`, got {type(tree).__name__!r}"
        )
    if tree.get("version") != 1:
        raise ConfigError(
            f"{source}: expected a mapping with `version: 1`, got {_short_repr(tree.get('version'))}"
        )
    entries = tree.get("rules")
    required = set(tree) - {"parts", "wishes", "scopes", *_LANGUAGE_KEYS}
    if required != {"version", "rules"} or not isinstance(entries, list) or not entries:
        raise ConfigError(
            f"{source}: expected `version: 1` and a list `rules:`, got the keys {sorted(map(str, tree))}"
        )
    return tree


def _parse_parts(value: Any, source: str) -> dict[str, str]:
    """Return the patterns that rules may use by name, in their order."""
    parts = value
    if isinstance(value, dict):
        parts = {name: _join_list(part) for name, part in value.items()}
    if not isinstance(parts, dict) or not all(isinstance(part, str) for part in parts.values()):
        raise ConfigError(
            f"{source}: `parts`: expected a mapping from names to patterns, got {_short_repr(parts)}"
        )
    return parts


@lru_cache(maxsize=32)
def _parse_file(raw: str, source: str) -> RuleFile:
    tree = _read_tree(raw, source)
    parts = _parse_parts(tree.get("parts", {}), source)
    language = _fill_parts({key: tree.get(key) for key in _LANGUAGE_KEYS}, parts)
    for key, value in language.items():
        if not _is_text_or_none(value):
            raise ConfigError(
                f"{source}: `{key}`: expected {_EXPECTED_PATTERN}; got {_short_repr(value)}"
            )
        language[key] = _compile_pattern(value, f"{source}: `{key}`")
    wishes = _parse_wishes(tree.get("wishes"), parts, f"{source}: `wishes`")
    patterns = PatternSet()
    scopes = _parse_scopes(tree.get("scopes"), parts, f"{source}: `scopes`", patterns)
    rules = tuple(_parse_rules(tree["rules"], parts, source, patterns))
    patterns.compile()
    return RuleFile(
        rules=rules,
        first_patterns=patterns,
        wishes=wishes,
        scopes=scopes,
        roles=frozenset(role for rule in rules for role in _ROLES_OF_SPEAKER[rule.who]),
        **language,
    )


def _parse_wishes(tree: Any, parts: Mapping[str, str], where: str) -> WishPatterns | None:
    if tree is None:
        return None
    topics = tree.get("topics") if isinstance(tree, dict) else None
    if not isinstance(topics, dict) or set(tree) - _WISH_KEYS or not all(map(_is_topic, topics)):
        raise ConfigError(
            f"{where}: expected `asked`, `topics` (subject/value: pattern) and maybe `unless`; got {_short_repr(tree)}"
        )
    asked = _compile_wish(tree.get("asked"), parts, f"{where}: `asked`")
    unless = _compile_wish(tree.get("unless"), parts, f"{where}: `unless`")
    patterns: dict[str, LinearPattern] = {}
    for topic, value in topics.items():
        pattern = _compile_wish(value, parts, f"{where}: {topic}")
        if pattern is not None:
            patterns[topic] = pattern
    if asked is None or len(patterns) < len(topics):
        raise ConfigError(f"{where}: `asked` and each topic: expected {_EXPECTED_PATTERN}")
    return WishPatterns(asked=asked, unless=unless, topics=patterns)


def _parse_scopes(
    tree: Any, parts: Mapping[str, str], where: str, patterns: PatternSet
) -> ScopePatterns:
    if tree is None:
        return ScopePatterns()
    keys = set(tree) if isinstance(tree, dict) else set()
    is_after_alone = "after" in keys and "before" not in keys
    if not keys or keys - set(_SCOPE_KEYS) or is_after_alone:
        raise ConfigError(
            f"{where}: expected `session`, `before` (what stands before a subject) or both, and maybe `after`; "
            f"got {_short_repr(tree)}"
        )
    compiled: dict[str, LinearPattern | None] = {}
    for key, value in tree.items():
        # What stands after a subject states no scope by itself.
        pattern_set = None if key == "after" else patterns
        compiled[key] = _compile_wish(value, parts, f"{where}: `{key}`", pattern_set)
    return ScopePatterns(**compiled)


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
        alternatives = _fill_alternatives(entry, parts)
        rule = _parse_rule(_fill_parts(entry, parts), alternatives, number, source, patterns)
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


def _fill_alternatives(entry: Any, parts: Mapping[str, str]) -> list[str]:
    """Return the patterns one of which must match: each of a list `when`, with its parts."""
    value = entry.get("when") if isinstance(entry, dict) else None
    if not isinstance(_join_list(value), str):
        return []
    patterns = value if isinstance(value, list) else [value]
    return [_fill_parts({"when": pattern}, parts)["when"] for pattern in patterns]


def _join_list(value: Any) -> Any:
    """Return one pattern for a list of alternatives; other values unchanged."""
    if isinstance(value, list) and value and all(_is_text(one) for one in value):
        return f"({'|'.join(value)})"
    return value


def _parse_rule(
    entry: Any, alternatives: Sequence[str], number: int, source: str, when_patterns: PatternSet
) -> Rule:
    where = f"{source}: rule {number}"
    if not isinstance(entry, dict):
        raise ConfigError(
            f"{where}: expected a mapping with {', '.join(_RULE_KEYS)}; got {_short_repr(entry)}"
        )
    values = {"who": "user", **entry}
    for key, (is_valid, expected) in _RULE_KEYS.items():
        value = values[key] = values.get(key)
        if not is_valid(value):
            raise ConfigError(f"{where}: `{key}`: expected {expected}; got {_short_repr(value)}")
        where = f"{source}: rule {number} ({values['name'].strip()})"
    if values["topic"] is not None and values["hint"] is None:
        raise ConfigError(f"{where}: `topic` is of a hint; expected a `hint` beside it")
    if unknown := [key for key in entry if key not in _RULE_KEYS]:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected {', '.join(_RULE_KEYS)}")
    if values["score"] is None and values["hint"] is None:
        raise ConfigError(f"{where}: expected a `score`, a `hint` or both; got neither")
    patterns = {
        key: _compile_pattern(values[key], f"{where}: `{key}`")
        for key in _RULE_PATTERN_KEYS
        if key != "when"
    }
    when = tuple(
        _compile_pattern(pattern, f"{where}: `when`", when_patterns) for pattern in alternatives
    )
    return Rule(
        **values
        | patterns
        | {"when": when}
        | {key: values[key] and values[key].strip() for key in ("name", "hint")}
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
