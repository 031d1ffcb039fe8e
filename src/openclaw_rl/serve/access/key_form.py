"""Describe the form of what a client sent as its key, without the key, so that the owner sees what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from openclaw_rl.common.gateway_address import HOME_KEY_PREFIX
from openclaw_rl.serve.episodes.ticket import TICKET_PREFIX

KEY_PREFIX = "sk-openclaw-"
KEY_HEADERS = ("x-api-key", "api-key")
"""Headers that have a key and nothing else: Anthropic's and Azure's."""
_AUTHORIZATION = "Authorization"
_BEARER = re.compile(r"bearer(?:\s+|$)", re.IGNORECASE)
_SCHEMES: Mapping[str, str] = {
    name.lower(): name
    for name in ("ApiKey", "AWS4-HMAC-SHA256", "Basic", "Digest", "Negotiate", "Token")
}
"""Scheme in lower case -> its name. Another first word may be part of a password."""
_VARIABLE_NAME = r"([A-Z][A-Z0-9_]{1,60})"
_VARIABLE = re.compile(rf"\$\{{?{_VARIABLE_NAME}\}}?|\{{env:{_VARIABLE_NAME}\}}|%{_VARIABLE_NAME}%")
KNOWN_VARIABLES = frozenset(
    {
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "COPILOT_PROVIDER_API_KEY",
        "FIREWORKS_API_KEY",
        "HF_TOKEN",
        "OPENAI_API_KEY",
        "OPENCLAW_API_KEY",
        "OPENCLAW_ENGINE_API_KEY",
        "OPENCLAW_JUDGE_API_KEY",
        "OPENCLAW_TEACHER_API_KEY",
        "TINKER_API_KEY",
        "WANDB_API_KEY",
    }
)
"""Variables of the documentation. What looks like another variable may be a password."""
_COMMAND = re.compile(r"\$\(.*\)?|`.*`?")
_JSON_WEB_TOKEN = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]*")
_PATH = re.compile(r"(~|\.{1,2})?/[^ ]*api_key")
_MASKED = re.compile(r"\*{3}|\.{3}|…|•")
_PLACEHOLDERS = frozenset(
    {
        "",
        "api-key",
        "apikey",
        "changeme",
        "dummy",
        "empty",
        "key",
        "n/a",
        "na",
        "no-key",
        "no-key-required",
        "none",
        "not-needed",
        "null",
        "ollama",
        "placeholder",
        "sk-no-key-required",
        "sk-xxx",
        "test",
        "undefined",
        "xxx",
        "your-api-key",
        "your_api_key",
    }
)
"""Values that programs and guides have in the place of a key, in lower case."""
_QUOTES = "\"'`“”‘’"
_PREFIXES: Mapping[str, str] = {
    "sk-ant-": "as Anthropic's keys do",
    "sk-or-": "as OpenRouter's keys do",
    "sk-proj-": "as OpenAI's keys do",
    KEY_PREFIX: "as the key of a gateway does, but not of this one",
    "sk-": "",
    "AIza": "as Google's keys do",
    "fw_": "as the keys of Fireworks do",
    "ghp_": "as GitHub's tokens do",
    "gho_": "as GitHub's tokens do",
    "gsk_": "as Groq's keys do",
    "hf_": "as the tokens of Hugging Face do",
    "nvapi-": "as NVIDIA's keys do",
    "pplx-": "as Perplexity's keys do",
    "tml-": "as Tinker's keys do",
    "xai-": "as the keys of xAI do",
}
"""Beginning of a key that is no secret -> whose keys begin so; longer ones come first."""
# Characters behind a prefix, without which the prefix might be most of the key.
_HIDDEN_CHARS = 8


def bearer_key(header: str) -> str:
    """Return the key of an Authorization header; "" if it has another scheme or none."""
    match = _BEARER.match(header)
    return header[match.end() :].strip() if match else ""


def describe_keys(headers: Mapping[str, str]) -> str:
    """Return what the headers have in the place of a key, for a client without a valid one."""
    parts = []
    if _AUTHORIZATION in headers:
        parts.append(f"Authorization: {_describe_authorization(headers[_AUTHORIZATION].strip())}")
    for name in KEY_HEADERS:
        if name in headers:
            parts.append(f"{name}: {describe_key(headers[name].strip())}")
    if not parts:
        return "no Authorization header was sent, and neither x-api-key nor api-key"
    return "; ".join(parts)


def _describe_authorization(value: str) -> str:
    if not value:
        return "an empty header"
    bearer = _BEARER.match(value)
    if bearer is not None:
        key = value[bearer.end() :].strip()
        if not key:
            return "the word Bearer without a key behind it"
        if _BEARER.match(key):
            return "the word Bearer twice; a client that adds it needs the key alone"
        return describe_key(key)
    scheme = _SCHEMES.get(value.split(maxsplit=1)[0].lower())
    if scheme is not None:
        return f"the scheme {scheme}, where Bearer is expected"
    return f"{describe_key(value)}, without the word Bearer before it"


def describe_key(key: str) -> str:
    """Return the form of a key: how long it is, how it begins if that is no secret, and what is odd about it."""
    if not key:
        return "an empty key"
    if key[0] in _QUOTES or key[-1] in _QUOTES:
        return "a key in quotation marks, which are no part of it"
    variable = _VARIABLE.fullmatch(key)
    if variable is not None:
        is_known = not KNOWN_VARIABLES.isdisjoint(variable.groups())
        name = f"{key}, a variable" if is_known else "a variable in a shell's notation"
        return f"{name} that the client did not replace by its value"
    if _COMMAND.fullmatch(key):
        return "a command in a shell's notation, which the client did not run"
    if key[0] in "<{[" and key[-1] in ">}]":
        return "a placeholder in brackets"
    if key.lower() in _PLACEHOLDERS:
        return f"the placeholder {key!r}"
    if _PATH.fullmatch(key):
        return "the path of a key file; the key is what the file contains"
    if _BEARER.match(key):
        return "a key behind the word Bearer, which this header does not have"
    return f"a key of {len(key)} characters{_describe_beginning(key)}{_describe_oddity(key)}"


def _describe_beginning(key: str) -> str:
    """Return whose key it is by its beginning, or ""."""
    if key.startswith(TICKET_PREFIX):
        return (
            f" that begins with {TICKET_PREFIX}: the ticket of an episode, of another gateway or of "
            "an owner whose key was taken away"
        )
    if key.startswith(HOME_KEY_PREFIX):
        return f" that begins with {HOME_KEY_PREFIX}: the key of another home's commands"
    if _JSON_WEB_TOKEN.fullmatch(key):
        return ": a JSON web token, as Microsoft Entra gives it"
    for prefix, owner in _PREFIXES.items():
        if key.startswith(prefix) and len(key) >= len(prefix) + _HIDDEN_CHARS:
            return f" that begins with {prefix}" + (f", {owner}" if owner else "")
    return ""


def _describe_oddity(key: str) -> str:
    """Return what a key should not have, or ""."""
    if _MASKED.search(key):
        return ", which was masked or shortened where it was copied"
    if not key.isascii():
        return ", with characters outside ASCII that came with it where it was copied"
    if re.search(r"\s", key):
        return ", with white space in it"
    if ":" in key:
        return ", with a colon in it: of a line NAME:KEY of the key file, send the part behind the colon"
    return ""
