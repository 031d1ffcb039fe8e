"""Reply styles of the simulated users, and checks of them. A style is one value on each of three axes.

The word lists fit the sentences of the shipped starter policy. `reply_properties` has checks for any model.
"""

import re
from typing import Literal, get_args

Length = Literal["short", "long"]
Tone = Literal["formal", "casual"]
Format = Literal["bulleted", "prose"]
# Styles that a user may like. `prose` is only the opposite of `bulleted`.
Taste = Literal["short", "long", "formal", "casual", "bulleted"]
Value = Literal["short", "long", "formal", "casual", "bulleted", "prose"]

TASTES: tuple[Taste, ...] = get_args(Taste)
VALUES: tuple[Value, ...] = get_args(Value)
OPPOSITE: dict[Value, Value] = {
    "short": "long",
    "long": "short",
    "formal": "casual",
    "casual": "formal",
    "bulleted": "prose",
    "prose": "bulleted",
}

# Word counts: a reply is short up to the first and long from the second. In between it is neither.
SHORT_WORDS = 8
LONG_WORDS = 12

_FORMAL = re.compile(
    r"\b(certainly|indeed|should you|disposal|do not hesitate|kindly|i remain)\b", re.IGNORECASE
)
_CASUAL = re.compile(
    r"\b(yep|sure|hey|wanna|gonna|shout|buddy|i'm|i've|you'd|let's)\b", re.IGNORECASE
)
_BULLET = re.compile(r"\s*[-*•]\s+\S")


def has_style(value: Value, reply: str) -> bool:
    """Return whether a reply has a style value, regardless of its content. An empty reply has none."""
    lines = [line for line in reply.splitlines() if line.strip()]
    length = len(re.findall(r"\w[\w']*", reply))
    bullets = [_BULLET.match(line) is not None for line in lines]
    formal = _FORMAL.search(reply) is not None
    casual = _CASUAL.search(reply) is not None
    checks: dict[Value, bool] = {
        "short": length <= SHORT_WORDS,
        "long": length >= LONG_WORDS,
        "formal": formal and not casual,
        "casual": casual and not formal,
        "bulleted": all(bullets),
        "prose": not any(bullets),
    }
    return length > 0 and checks[value]
