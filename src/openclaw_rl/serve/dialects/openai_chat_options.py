"""Options beyond OpenAI's: fields that are refused or ignored. `forced_format` has those that force a format.

`fields` is the JSON of each top-level key of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgspec

from openclaw_rl.errors import RequestError
from openclaw_rl.serve.chat_request import field_error
from openclaw_rl.serve.dialects.validation import decode_json, printable_header

# top-level keys; each unknown one is described in a header.
MAX_BODY_KEYS = 1000
_EMPTY: tuple[Any, ...] = (None, False, [], {}, "")
_UNSUPPORTED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "audio": (_EMPTY, "the model writes text only; leave it out."),
    "bad_words": (_EMPTY, "not supported; send logit_bias for single tokens."),
    "best_of": ((None, 1), "not supported; send n, and choose among the replies."),
    "grammar_lazy": (
        _EMPTY,
        "a grammar that begins at a trigger is not supported; send grammar alone, or tool_choice.",
    ),
    "ignore_eos": (_EMPTY, "not supported; send min_tokens for a reply of a minimum length."),
    "length_penalty": ((None, 1), "beam search is not supported; leave it out."),
    "logits_processors": (_EMPTY, "code of a request does not run here; send logit_bias."),
    "modalities": ((None, [], ["text"]), "the model writes text only; expected ['text']."),
    "prediction": (_EMPTY, "predicted outputs are not supported; leave it out."),
    "prompt_embeds": (_EMPTY, "not supported; send messages."),
    "prompt_logprobs": ((None,), "not supported; send logprobs for those of the reply."),
    "repetition_penalty": (
        (None, 1),
        "not supported; send frequency_penalty or presence_penalty, or the value 1.",
    ),
    "structural_tag": (
        _EMPTY,
        "not supported; send regex, ebnf, json_schema, or tool_choice.",
    ),
    "use_beam_search": (_EMPTY, "not supported; leave it out."),
    "web_search_options": (
        (None,),
        "web search is not supported; send a tool, and run it in the client.",
    ),
}
"""Field -> (values without effect, what to do). Any other value would change the reply, so it is refused."""
_raw_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_any_decoder = msgspec.json.Decoder()


def read_keys(body: bytes) -> dict[str, msgspec.Raw]:
    """Return the JSON of each top-level key of the body. Raises `RequestError` for too many keys."""
    fields = decode_json(_raw_decoder, body)
    if len(fields) > MAX_BODY_KEYS:
        raise RequestError(f"the body has {len(fields)} fields; expected at most {MAX_BODY_KEYS}.")
    return fields


def read_ignored(fields: Mapping[str, msgspec.Raw], known: AbstractSet[str]) -> list[str]:
    """Return the keys outside `known`, which have no effect. Raises `RequestError` for one that needs support."""
    ignored = []
    for key in fields.keys() - known:
        if bytes(fields[key]) == b"null":
            continue
        if key not in _UNSUPPORTED:
            ignored.append(printable_header(key))
            continue
        values_without_effect, advice = _UNSUPPORTED[key]
        if read_field(fields, key) not in values_without_effect:
            raise field_error(key, advice)
    return sorted(ignored)


def read_field(fields: Mapping[str, msgspec.Raw], key: str) -> Any:
    """Return the value of a key; None if the body does not have it."""
    return decode_json(_any_decoder, bytes(fields[key]), key) if key in fields else None
