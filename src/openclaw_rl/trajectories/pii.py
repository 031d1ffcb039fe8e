r"""Replace personal data and secrets in a text by placeholders that name their kind.

The patterns run over arbitrary text, so each must take linear time (as in `client_patterns.py`). A repetition of
unbounded length is possessive and starts where such a run starts; any other repetition is bounded. The JSON escapes
`\n`, `\r` and `\t` are two characters and act as a boundary, because tool results are often JSON inside a text.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

KINDS = ("email", "phone", "key", "token", "ip", "home")
"""`key`: a key of a known issuer, or PEM. `token`: JWT, bearer, password in a URL, or the value of a secret's name."""

_COMMON_DOMAINS = ("com", "org", "net", "edu", "gov", "mil", "int", "info", "biz")
_LETTERS = re.compile(r"[^\W\d_]+")

KeepMatch = Callable[[re.Match[str]], bool]
_ESCAPE = r"\\[nrt]"


def placeholder(kind: str) -> str:
    return f"[{kind.upper()}]"


@dataclass(frozen=True, slots=True)
class _Rule:
    """Replaces group `it` (or the whole match) by a placeholder, unless `keep` returns True for the match."""

    kind: str
    pattern: re.Pattern[str]
    hints: tuple[str, ...]  # lower case; a text without any of them cannot match
    quick: re.Pattern[str]  # a cheaper pattern; a text without it cannot match
    keep: KeepMatch | None

    def replace_matches(self, text: str, low: str, counts: Counter[str]) -> str:
        if not any(hint in low for hint in self.hints) or self.quick.search(text) is None:
            return text
        return self.pattern.sub(lambda match: self._replacement(match, counts), text)

    def _replacement(self, match: re.Match[str], counts: Counter[str]) -> str:
        if self.keep is not None and self.keep(match):
            return match[0]
        counts[self.kind] += 1
        start, end = match.span("it") if "it" in match.re.groupindex else match.span()
        return (
            match[0][: start - match.start()]
            + placeholder(self.kind)
            + match[0][end - match.start() :]
        )


def _make_rule(
    kind: str,
    expression: str,
    hints: str,
    *,
    before: str = "",
    quick: str = "",
    keep: KeepMatch | None = None,
) -> _Rule:
    """`before`: character class that may not precede a match; the letter of a JSON escape may precede it anyway."""
    start = rf"(?:(?<![{before}])(?!(?<=\\)[nrt])|(?<={_ESCAPE}))" if before else ""
    return _Rule(
        kind, re.compile(start + expression), tuple(hints.split()) or ("",), re.compile(quick), keep
    )


def _is_not_email(match: re.Match[str]) -> bool:
    """Return True for matches that are no personal address: `react@18.2.0`, `x@w.T`, `q@k.transpose(1)`, `git@host`.

    In doubt a match is an address: redacting `q@k.data` does less harm than leaving an address. Labels after the
    domain may belong to a file name: `alice@example.com.bak`.
    """
    if match[0].startswith("git@"):
        return True
    labels = match[0].rpartition("@")[2].split(".")[1:]
    called = match.string[match.end() : match.end() + 1] == "("
    return not any(_can_end_domain(label, called) for label in labels)


def _can_end_domain(label: str, called: bool) -> bool:
    """Return True if a label can end a domain. `called`: `(` follows, so names that look like a method do not count."""
    match = _LETTERS.match(label)
    letters = match[0] if match is not None else ""
    # Code such as `q@k.mT`.
    is_code = len(letters) == 2 and letters[0].islower() and letters[1].isupper()
    if len(letters) < 2 or is_code:
        return False
    name = letters.lower()
    is_country = len(name) == 2 and name != "to"
    return not called or is_country or name in _COMMON_DOMAINS


def _is_not_phone(match: re.Match[str]) -> bool:
    return not 9 <= sum(c.isdigit() for c in match[0]) <= 15


def _is_harmless_ip(match: re.Match[str]) -> bool:
    """Return whether the match is no IP address, or a loopback or unspecified one."""
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:
        return True
    return address.is_loopback or address.is_unspecified or not any(c.isdigit() for c in match[0])


_ISSUED_KEYS = "|".join(
    (
        # OpenAI, Anthropic, OpenRouter, ours.
        r"sk-[\w-]{16,}+",
        # Stripe.
        r"(?:sk|pk|rk)_(?:live|test)_\w{10,}+|whsec_\w{16,}+",
        r"gh[pousr]_\w{20,}+|github_pat_\w{20,}+|gl(?:pat|ptt|dt|rt)-[\w-]{16,}+",
        r"(?:AKIA|ASIA|ABIA|ACCA|AROA|AIDA)[A-Z0-9]{16}(?!\w)",
        r"AIza[\w-]{30,}+|ya29\.[\w-]{20,}+|GOCSPX-[\w-]{20,}+",
        r"xox[abeoprs]-[\w-]{10,}+|xapp-[\w-]{10,}+",
        r"(?:hf|npm|fw|tgp|gsk|r8|pplx|dop_v1|tml|wandb_v1)_\w{20,}+|(?:tml|pypi|pplx|xai|nvapi)-[\w-]{20,}+",
        # SendGrid, Telegram.
        r"SG\.[\w-]{16,64}\.[\w-]{16,}+|\d{8,10}:AA[\w-]{30,}+",
    )
)
_PREFIXES = (
    "sk- sk_ pk_ rk_ whsec_ ghp_ gho_ ghu_ ghs_ ghr_ github_ glpat- glptt- gldt- glrt- akia asia abia acca aroa aida "
    "aiza ya29. gocspx- xoxa xoxb xoxe xoxo xoxp xoxr xoxs xapp- hf_ npm_ fw_ tgp_ gsk_ r8_ pplx dop_v1_ tml wandb_v1_ "
    "pypi- xai- nvapi- sg. :aa"
)
# Characters of passwords besides letters and digits.
_PASSWORD_CHARACTERS = r"+/=_.!#%^*@$-"
_SECRET_NAMES = (
    r"(?i:api[_-]?key|secret[_-]?(?:access[_-]?)?key|access[_-]?(?:key|token)|auth[_-]?token|client[_-]?secret"
    r"|private[_-]?key|password|passwd|passphrase|pwd|secret|token)"
)
_PHONES = "|".join(
    (
        r"\+[1-9](?:[ ./()-]{0,2}\d){7,14}(?!\d)",
        r"(?:(?<![\w.-])(?!(?<=\\)[nrt])|(?<=\\[nrt]))(?:1[ .-])?"
        r"(?:\([2-9]\d\d\)[ .-]?|[2-9]\d\d[ .-])\d{3}[ .-]\d{4}(?!\w|[.-]\d)",
        r"(?:(?<![\w.,:/-])(?!(?<=\\)[nrt])|(?<=\\[nrt]))"
        r"(?:0[1-9]\d{0,3}|\(0[1-9]\d{0,3}\))(?:[ /-]{1,2}\d{2,8}){1,5}(?!\w|[.,:/-]\d)",
    )
)
_V4 = r"(?:\d{1,3}\.){3}\d{1,3}"
# Of a home folder; with spaces on Windows.
_HOME_NAME = r"(?:[\w.@+$-]++(?: [\w.@+$-]++){1,3}(?=\\)|[\w.@+$-]++)"

_RULES = (
    _make_rule(
        "key",
        r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----[\w+/=\s\\:,.]*+(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?",
        "-----begin",
    ),
    _make_rule("token", r"eyJ[\w-]{8,}+\.[\w-]{8,}+(?:\.[\w-]*+)?", "eyj", before=r"\w-"),
    _make_rule("token", r"(?<=://)[^\s/@:\"'\[\]]*+:(?P<it>[^\s/@\"'\[\]]++)(?=@)", "://"),
    _make_rule("key", f"(?:{_ISSUED_KEYS})", _PREFIXES, before=r"A-Za-z0-9"),
    _make_rule(
        "token",
        r"(?i:bearer|authorization[\"':\s]{1,6}basic)\s{1,8}(?P<it>[\w.~+/-]{16,}+=*+)",
        "bearer authorization",
        before=r"A-Za-z0-9",
    ),
    _make_rule(
        "token",
        _SECRET_NAMES + r"[\"'\\]{0,4}\s{0,4}[:=]{1,2}\s{0,4}[\"'\\]{0,4}"
        rf"(?P<it>(?=[A-Za-z{_PASSWORD_CHARACTERS}]{{0,80}}\d)(?=[\d{_PASSWORD_CHARACTERS}]{{0,80}}[A-Za-z])[\w{_PASSWORD_CHARACTERS}]{{6,}}+)(?![\[(])",
        "key pass pwd secret token",
    ),
    _make_rule(
        "email", r"[\w.+%-]++@[\w-]++(?:\.[\w-]++)++", "@", before=r"\w.+%-", keep=_is_not_email
    ),
    _make_rule(
        "home", rf"(?<!HOME\])/(?:home|Users)/{_HOME_NAME}", "/home/ /users/", before=r"\w."
    ),
    _make_rule(
        "home",
        rf"(?<!HOME\])(?:/[\w.-]++){{1,3}}/(?:home|Users)/{_HOME_NAME}",
        "/home/ /users/",
        before=r"\w./~",
    ),
    _make_rule(
        "home",
        rf"[A-Za-z]:[\\/]{{1,4}}(?i:Users|Documents and Settings)[\\/]{{1,4}}{_HOME_NAME}",
        r":\ :/",
        before=r"\w",
        quick=r":[\\/]{1,4}[UuDd]",
    ),
    _make_rule(
        "ip",
        rf"{_V4}(?!\w|\.\d)",
        ".",
        before=r"\w.",
        quick=r"\d\.\d{1,3}\.\d",
        keep=_is_harmless_ip,
    ),
    _make_rule(
        "ip",
        rf"(?:[\dA-Fa-f]{{0,4}}:){{2,7}}(?:{_V4}|[\dA-Fa-f]{{0,4}})(?!\w)",
        ":",
        before=r"\w:.",
        quick=r":[\dA-Fa-f]{0,4}:",
        keep=_is_harmless_ip,
    ),
    _make_rule("phone", f"(?:{_PHONES})", "", quick=r"\d[ ./()-]{0,2}\d{2}", keep=_is_not_phone),
)


def scrub_text(text: str) -> tuple[str, Counter[str]]:
    """Return (the redacted text, number of findings by kind). Idempotent."""
    counts: Counter[str] = Counter()
    while True:
        before = text
        low = text.lower()
        for rule in _RULES:
            text = rule.replace_matches(text, low, counts)
        if text == before:
            return text, counts
