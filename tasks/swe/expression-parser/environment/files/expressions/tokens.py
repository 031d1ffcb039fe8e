"""Splits an expression into numbers and signs."""

import re

_TOKEN = re.compile(r"\s*(?:(\d+(?:\.\d+)?)|(\*\*|[-+*/()]))")


def split(text):
    """Return the tokens. Raises ValueError at a character that is none."""
    tokens, at, text = [], 0, text.rstrip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise ValueError(f"unexpected {text[at]!r} at {at}")
        tokens.append(float(match[1]) if match[1] else match[2])
        at = match.end()
    return tokens
