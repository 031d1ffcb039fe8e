"""Parse JSON to a trajectory, and report what is wrong with invalid JSON."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import msgspec

from openclaw_rl.common.message_hash import message_text
from openclaw_rl.settings import strict_yaml
from openclaw_rl.store.imported_turns import DropRecord
from openclaw_rl.store.rows import from_json
from openclaw_rl.trajectories.schema import (
    MAX_NAME_LENGTH,
    ROLES,
    FileFeedback,
    FileReaction,
    FileTurn,
    FileVerdict,
    Trajectory,
    TrajectoryRefused,
    is_valid_unicode,
    prompt_of,
)
from openclaw_rl.types import ExchangeStatus, Kind, Sampling, Span, Vote

_FORMAT_PARTS: Mapping[str, tuple[type, Mapping[str, str]]] = {
    "trajectory": (Trajectory, {"turns": "turn"}),
    "turn": (
        FileTurn,
        {
            "sampling": "sampling",
            "spans": "span",
            "reaction": "reaction",
            "feedback": "feedback",
            "verdict": "verdict",
        }
        | {"dropped": "dropped"},
    ),
    "sampling": (Sampling, {}),
    "span": (Span, {}),
    "reaction": (FileReaction, {}),
    "feedback": (FileFeedback, {}),
    "verdict": (FileVerdict, {"votes": "vote"}),
    "vote": (Vote, {}),
    "dropped": (DropRecord, {}),
}
"""Part of the format -> (its type, which lists the allowed keys; the keys that are parts themselves)."""
_ALLOWED_KEYS = {
    part: tuple(f.name for f in fields(kind)) for part, (kind, _) in _FORMAT_PARTS.items()
}


def decode_json(raw: bytes, where: str = "", turn: int | None = None) -> Any:
    """Decode JSON to Python values. Raises `TrajectoryRefused`, also for a duplicate key.

    `where`: prefix of the error message.
    """
    try:
        # The decoder below would take the last of two.
        json.loads(raw, object_pairs_hook=strict_yaml.reject_duplicate_keys)
        return from_json(raw)
    except RecursionError:
        raise TrajectoryRefused("not JSON", f"{where}nested too deeply", turn) from None
    except strict_yaml.DuplicateKey as error:
        raise TrajectoryRefused("key twice", f"{where}{error}", turn) from None
    except ValueError as error:
        more = (
            "; several trajectories: an array, or one per line in a .jsonl"
            if "Extra data" in str(error)
            else ""
        )
        raise TrajectoryRefused(
            "not JSON", f"{where}expected JSON: {str(error)[:200]}{more}", turn
        ) from None


def parse_trajectory(value: Any) -> Trajectory:
    """Convert decoded JSON to a trajectory. Raises `TrajectoryRefused`."""
    if not isinstance(value, dict):
        raise TrajectoryRefused(
            "no object",
            f"expected an object with session_id and turns, got {_describe_value(value)}",
        )
    _check_keys(value, "trajectory", None)
    turns = value.get("turns")
    if not isinstance(turns, list) or not turns:
        raise TrajectoryRefused(
            "no turns", f"turns: expected a list of one turn or more, got {_describe_value(turns)}"
        )
    read = tuple(_parse_turn(turn, number) for number, turn in enumerate(turns, 1))
    trajectory = _convert_part(value | {"turns": ()}, Trajectory, None)
    for problem in (
        *_name_problems("session_id", trajectory.session_id),
        *_surrogate_problems(trajectory),
    ):
        raise TrajectoryRefused(*problem)
    return Trajectory(
        session_id=trajectory.session_id, turns=read, agent=trajectory.agent, user=trajectory.user
    )


def _parse_turn(value: Any, number: int) -> FileTurn:
    if not isinstance(value, dict):
        raise TrajectoryRefused(
            "wrong type", f"expected an object, got {_describe_value(value)}", number
        )
    _check_keys(value, "turn", number)
    turn: FileTurn = _convert_part(value, FileTurn, number)
    for problem in _turn_problems(turn):
        raise TrajectoryRefused(*problem, number)
    return turn


def _check_keys(value: Mapping[str, Any], part: str, turn: int | None) -> None:
    keys = _ALLOWED_KEYS[part]
    for key in value:
        if key not in keys:
            where = "" if part in ("trajectory", "turn") else f"{part}: "
            message = f"{where}unknown key {key[:60]!r}; {_key_hint(key, keys)}"
            raise TrajectoryRefused("unknown key", message, turn)
    for key, inner in _FORMAT_PARTS[part][1].items():
        if inner != "turn":
            for item in _objects_in(value.get(key)):
                _check_keys(item, inner, turn)


def _key_hint(key: str, keys: Sequence[str]) -> str:
    """Return the known key that is nearest to an unknown one, or the first known keys."""
    near = difflib.get_close_matches(key, keys, 1, 0.5)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known are {', '.join(keys[:6])}" + ", ..." * (len(keys) > 6)


def _objects_in(value: Any) -> list[dict[str, Any]]:
    """Return the objects in a value. Other values are left to type checking."""
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, dict)]


def _convert_part(value: Mapping[str, Any], kind: type, turn: int | None) -> Any:
    try:
        return msgspec.convert(value, kind, str_keys=True)
    except msgspec.ValidationError as error:
        text = str(error).replace("Object missing required field", "missing key")
        message, _, at = text.partition(" - at `")
        where = at.rstrip("`").removeprefix("$").removeprefix(".")
        message = message[0].lower() + message[1:].replace("`", "")
        if where == "type" and "enum" in message:
            message += "; expected main or side"
        if where:
            message = f"{where}: {message}"
        reason = "missing key" if "missing key" in text else "wrong type"
        raise TrajectoryRefused(reason, message, turn) from None
    except (OverflowError, ValueError) as error:
        raise TrajectoryRefused("wrong type", str(error), turn) from None


def _turn_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) for problems that the types do not catch."""
    for name in ("id", "parent", "relation_of"):
        value = getattr(turn, name)
        if value is not None:
            yield from _name_problems(name, value)
    yield from _surrogate_problems(turn)
    yield from _text_problems(turn)
    yield from _token_problems(turn)
    for name in ("at", "first_token_at", "finished_at"):
        time = getattr(turn, name)
        if time is not None and not (math.isfinite(time) and time >= 0):
            yield "out of range", f"{name}: expected seconds since 1970, got {time!r}"
    if turn.status is ExchangeStatus.RUNNING:
        yield (
            "out of range",
            "status: a running reply cannot be in a trajectory; expected done, cancelled or failed",
        )
    if turn.status is ExchangeStatus.DONE and turn.finish is None:
        yield "missing key", "finish: expected stop, length or tool_calls, got null"
    if turn.untrainable and turn.trainable:
        yield (
            "contradiction",
            "trainable is true, but untrainable has a reason; expected one of them",
        )
    if turn.type is Kind.SIDE and turn.trainable:
        yield "contradiction", "a side turn never trains; expected trainable false, or type main"


def _text_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
    if turn.redacted:
        texts = (turn.prompt, turn.response, turn.messages, turn.message, turn.prompt_ids)
        if texts.count(None) < len(texts):
            yield "contradiction", "redacted, but it has text or tokens; expected none of them"
        if turn.id is None:
            yield (
                "missing key",
                "id: a redacted turn cannot be identified by its text; expected the id of its export",
            )
        return
    if turn.prompt is None and turn.messages is None:
        yield "missing key", "missing key `prompt` (or `messages`)"
    if turn.response is None and turn.message is None:
        yield "missing key", "missing key `response` (or `message`)"
    for name in ("messages", "next_state"):
        yield from _message_problems(name, getattr(turn, name))
    yield from _message_problems(
        "message", None if turn.message is None else [turn.message], only="assistant"
    )
    if turn.messages is not None and turn.prompt not in (None, prompt_of(turn.messages)):
        yield (
            "contradiction",
            "prompt differs from the last user message of messages; expected the same, or only one",
        )
    if turn.message is not None and turn.response not in (None, message_text(turn.message)):
        yield (
            "contradiction",
            "response differs from the text of message; expected the same text, or only one",
        )


def _message_problems(name: str, value: Any, only: str | None = None) -> Iterator[tuple[str, str]]:
    if not isinstance(value, list):
        return
    if not value and name == "messages":
        yield "out of range", "messages: expected one message or more, got none"
    for message in value:
        role = message.get("role")
        if role not in ((only,) if only else ROLES):
            known = only or ", ".join(ROLES[:5])
            yield "out of range", f"{name}: expected a role of {known}, got {_describe_value(role)}"
        content = message.get("content")
        if not _is_content(content):
            expected = f"expected text, or a list of parts, got {_describe_value(content)}"
            yield "wrong type", f"{name}: content: {expected}"
        calls = message.get("tool_calls")
        if not isinstance(calls, list | None) or not all(map(_is_tool_call, calls or ())):
            expected = "expected a list of calls, each with function.name"
            yield "wrong type", f"{name}: tool_calls: {expected}"


def _is_content(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(part, str | dict) for part in content)
    return isinstance(content, str | None)


def _is_tool_call(call: Any) -> bool:
    function = call.get("function") if isinstance(call, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _token_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
    present = [
        n
        for n in ("prompt_ids", "response_ids", "logprobs", "mask", "spans")
        if getattr(turn, n) is not None
    ]
    if not present:
        return
    if turn.prompt_ids is None or turn.response_ids is None or turn.logprobs is None:
        yield (
            "token arrays",
            f"prompt_ids, response_ids and logprobs must come together; got only {', '.join(present)}",
        )
        return
    if turn.identity is None:
        yield (
            "token arrays",
            "prompt_ids need the identity of their model. Keep all token keys as an export wrote them, or omit them: "
            "then the text is tokenised",
        )
    r = len(turn.response_ids)
    mask = r if turn.mask is None else len(turn.mask)
    if not (len(turn.logprobs) == mask == r):
        yield (
            "token arrays",
            f"{r} response_ids, but {len(turn.logprobs)} logprobs and {mask} mask entries",
        )
    ids = (*turn.prompt_ids, *turn.response_ids)
    if ids and not 0 <= min(ids) <= max(ids) < 2**31:
        yield "token arrays", "ids: expected whole numbers from 0 to 2^31 - 1"
    if not turn.prompt_ids:
        yield "token arrays", "prompt_ids: expected one or more, got none"
    if not all(p is None or (math.isfinite(p) and p <= 1e-3) for p in turn.logprobs):
        yield (
            "token arrays",
            "logprobs: expected natural logarithms of probabilities (0 or less), or null",
        )
    yield from _span_problems(turn, r)


def _span_problems(turn: FileTurn, r: int) -> Iterator[tuple[str, str]]:
    ends = [(s.start, s.end) for s in turn.spans or ()]
    joined = [0, *(e for _, e in ends)][:-1] == [s for s, _ in ends] and all(
        s <= e for s, e in ends
    )
    if ends and not (joined and ends[-1][1] == r):
        yield "token arrays", f"spans: expected consecutive ranges from 0 to {r}, got {ends[:4]}"
    if not all(0 <= v < 2**31 for v in (turn.version, *(s.version for s in turn.spans or ()))):
        yield "out of range", "version: expected 0 or more"


def _name_problems(key: str, name: str) -> Iterator[tuple[str, str]]:
    shown = None
    if not name:
        shown = "nothing"
    elif len(name) > MAX_NAME_LENGTH:
        shown = f"{len(name)} characters"
    elif not name.isprintable():
        shown = repr(name)
    if shown is not None:
        expected = f"expected 1 to {MAX_NAME_LENGTH} printable characters"
        yield "out of range", f"{key}: {expected}, got {shown}"


def _surrogate_problems(value: Any) -> Iterator[tuple[str, str]]:
    """Yield problems of texts with half a surrogate pair, which JSON can escape but a text column cannot hold."""
    for name in (f.name for f in fields(value)):
        inner = getattr(value, name)
        if name in ("reaction", "verdict", "dropped") and inner is not None:
            yield from _surrogate_problems(inner)
        elif name == "feedback":
            yield from (problem for item in inner for problem in _surrogate_problems(item))
        elif isinstance(inner, str) and not is_valid_unicode(inner):
            yield "out of range", f"{name}: holds half a surrogate pair; expected whole characters"


def _describe_value(value: Any) -> str:
    kinds = {
        dict: "an object",
        list: "a list",
        str: "text",
        bool: "true or false",
        type(None): "nothing",
    }
    if isinstance(value, str):
        return repr(value[:40])
    return "an empty list" if value == [] else kinds.get(type(value), "a number")
