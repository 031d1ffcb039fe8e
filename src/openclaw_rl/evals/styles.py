"""Reply styles: a writer and checks.

A style is one value on each of three axes. Writer and checks are independent: the checks share only a few words that
mark a tone with the writer's sentences, and apply to any reply of a model.

The first tokens of a reply determine each axis, before the fact: the dash of a list, then the opener for the tone, then
the mark after it for the length. So the credit for a whole reply falls on few tokens, and always the same ones.
"""

import random
import re
from dataclasses import dataclass
from typing import Literal, get_args

from openclaw_rl.evals.toy_world import Fact

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

_FORMAL = re.compile(r"\b(certainly|indeed|should you|disposal|do not hesitate|kindly|i remain)\b", re.IGNORECASE)
_CASUAL = re.compile(r"\b(yep|sure|hey|wanna|gonna|shout|buddy|i'm|i've|you'd|let's)\b", re.IGNORECASE)
_BULLET = re.compile(r"\s*[-*•]\s+\S")

_OPENERS: dict[Tone, tuple[str, ...]] = {"formal": ("Certainly", "Indeed"), "casual": ("Yep", "Sure")}
_CLOSERS: dict[Tone, tuple[str, ...]] = {
    "formal": ("Should you require more, kindly ask.", "I remain at your disposal."),
    "casual": ("Just shout if you wanna hear more!", "I'm all ears for another one!"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyStyle:
    """One value on each axis."""

    length: Length
    tone: Tone
    format: Format

    def with_value(self, value: Value) -> "ReplyStyle":
        """Return this style with one axis set to `value`."""
        return ReplyStyle(
            length=value if value == "short" or value == "long" else self.length,
            tone=value if value == "formal" or value == "casual" else self.tone,
            format=value if value == "bulleted" or value == "prose" else self.format,
        )


def draw_style(rng: random.Random) -> ReplyStyle:
    """Draw a style: each axis independently, both values with equal probability."""
    return ReplyStyle(
        length=rng.choice(get_args(Length)), tone=rng.choice(get_args(Tone)), format=rng.choice(get_args(Format))
    )


def write_answer(fact: Fact, style: ReplyStyle, rng: random.Random) -> str:
    """Return the correct answer to a question about `fact`, in a style."""
    opener = rng.choice(_OPENERS[style.tone])
    if style.length == "short":
        lines = [f"{opener}: {fact.answer}."]
    else:
        mark = "." if style.tone == "formal" else "!"
        lines = [opener + mark, f"{fact.statement}.", rng.choice(_CLOSERS[style.tone])]
    return "\n".join(f"- {line}" for line in lines) if style.format == "bulleted" else " ".join(lines)


def has_style(value: Value, reply: str) -> bool:
    """Return whether a reply has a style value, regardless of its content. An empty reply has none."""
    lines = [line for line in reply.splitlines() if line.strip()]
    words = len(re.findall(r"\w[\w']*", reply))
    bullets = [_BULLET.match(line) is not None for line in lines]
    formal, casual = _FORMAL.search(reply) is not None, _CASUAL.search(reply) is not None
    checks: dict[Value, bool] = {
        "short": words <= SHORT_WORDS,
        "long": words >= LONG_WORDS,
        "formal": formal and not casual,
        "casual": casual and not formal,
        "bulleted": all(bullets),
        "prose": not any(bullets),
    }
    return words > 0 and checks[value]
