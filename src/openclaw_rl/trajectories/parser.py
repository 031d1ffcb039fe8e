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
from openclaw_rl.types import ExchangeStatus, Kind, Message, Sampling, Span, Vote

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
        more = ""
        if "Extra data" in str(error):
            more = "; several trajectories: an array, or one per line in a .jsonl"
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
    _, inner_parts = _FORMAT_PARTS[part]
    for key, inner in inner_parts.items():
        # Turns are checked one by one, with their numbers.
        items = [] if inner == "turn" else _objects_in(value.get(key))
        for item in items:
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
        raise TrajectoryRefused(*_type_problem(str(error)), turn) from None
    except (OverflowError, ValueError) as error:
        raise TrajectoryRefused("wrong type", str(error), turn) from None


def _type_problem(message: str) -> tuple[str, str]:
    """Return (reason, message) for a message of msgspec: `<problem> - at `$.<path>``, where the path may be absent."""
    message = message.replace("Object missing required field", "missing key")
    reason = "missing key" if "missing key" in message else "wrong type"
    problem, _, path = message.partition(" - at `")
    where = path.rstrip("`").removeprefix("$").removeprefix(".")
    problem = problem[0].lower() + problem[1:].replace("`", "")
    if where == "type" and "enum" in problem:
        problem += "; expected main or side"
    return reason, f"{where}: {problem}" if where else problem


def _turn_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
    """Yield (reason, message) for problems that the types do not catch."""
    for name in ("id", "parent", "relation_of"):
        value = getattr(turn, name)
        if value is not None:
            yield from _name_problems(name, value)
    yield from _surrogate_problems(turn)
    yield from _redaction_problems(turn) if turn.redacted else _text_problems(turn)
    yield from _token_problems(turn)
    for name in ("at", "first_token_at", "finished_at"):
        time = getattr(turn, name)
        if time is not None and not 0 <= time < math.inf:
            yield "out of range", f"{name}: expected seconds since 1970, got {time!r}"
    yield from _state_problems(turn)


def _state_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
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


def _redaction_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
    texts = (turn.prompt, turn.response, turn.messages, turn.message, turn.prompt_ids)
    if texts.count(None) < len(texts):
        yield "contradiction", "redacted, but it has text or tokens; expected none of them"
    if turn.id is None:
        yield (
            "missing key",
            "id: a redacted turn cannot be identified by its text; expected the id of its export",
        )


def _text_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
    if turn.prompt is None and turn.messages is None:
        yield "missing key", "missing key `prompt` (or `messages`)"
    if turn.response is None and turn.message is None:
        yield "missing key", "missing key `response` (or `message`)"
    if turn.messages == []:
        yield "out of range", "messages: expected one message or more, got none"
    yield from _list_problems("messages", turn.messages)
    yield from _list_problems("next_state", turn.next_state)
    if turn.message is not None:
        yield from _message_problems("message", turn.message, ("assistant",))
    yield from _summary_problems(turn)


def _list_problems(name: str, value: Any) -> Iterator[tuple[str, str]]:
    messages = value if isinstance(value, list) else []
    for message in messages:
        yield from _message_problems(name, message, ROLES)


def _summary_problems(turn: FileTurn) -> Iterator[tuple[str, str]]:
    """Yield where the texts of prompt and reply differ from the messages beside them."""
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


def _message_problems(
    name: str, message: Message, roles: Sequence[str]
) -> Iterator[tuple[str, str]]:
    role = message.get("role")
    if role not in roles:
        known = ", ".join(roles[:5])
        yield "out of range", f"{name}: expected a role of {known}, got {_describe_value(role)}"
    content = message.get("content")
    if not _is_content(content):
        expected = f"expected text, or a list of parts, got {_describe_value(content)}"
        yield "wrong type", f"{name}: content: {expected}"
    calls = message.get("tool_calls")
    if calls is not None and not (isinstance(calls, list) and all(map(_is_tool_call, calls))):
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
    keys = ("prompt_ids", "response_ids", "logprobs", "mask", "spans")
    present = [key for key in keys if getattr(turn, key) is not None]
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
    yield from _array_problems(turn.prompt_ids, turn.response_ids, turn.logprobs, turn.mask)
    yield from _span_problems(turn, len(turn.response_ids))


def _array_problems(
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    logprobs: Sequence[float | None],
    mask: Sequence[bool] | None,
) -> Iterator[tuple[str, str]]:
    length = len(response_ids)
    mask_length = length if mask is None else len(mask)
    if not (len(logprobs) == mask_length == length):
        yield (
            "token arrays",
            f"{length} response_ids, but {len(logprobs)} logprobs and {mask_length} mask entries",
        )
    ids = (*prompt_ids, *response_ids)
    if ids and not 0 <= min(ids) <= max(ids) < 2**31:
        yield "token arrays", "ids: expected whole numbers from 0 to 2^31 - 1"
    if not prompt_ids:
        yield "token arrays", "prompt_ids: expected one or more, got none"
    if not all(-math.inf < p <= 1e-3 for p in logprobs if p is not None):
        yield (
            "token arrays",
            "logprobs: expected natural logarithms of probabilities (0 or less), or null",
        )


def _span_problems(turn: FileTurn, length: int) -> Iterator[tuple[str, str]]:
    spans = turn.spans or ()
    ranges = [(span.start, span.end) for span in spans]
    versions = [turn.version, *(span.version for span in spans)]
    if ranges and not _is_partition(ranges, length):
        problem = f"expected consecutive ranges from 0 to {length}, got {ranges[:4]}"
        yield "token arrays", f"spans: {problem}"
    if not 0 <= min(versions) <= max(versions) < 2**31:
        yield "out of range", "version: expected 0 or more"


def _is_partition(ranges: Sequence[tuple[int, int]], length: int) -> bool:
    """Return whether ranges follow each other without a gap from 0 to `length`."""
    end = 0
    for start, range_end in ranges:
        if start != end or range_end < start:
            return False
        end = range_end
    return end == length


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
    for field in fields(value):
        inner = getattr(value, field.name)
        if isinstance(inner, str) and not is_valid_unicode(inner):
            yield (
                "out of range",
                f"{field.name}: holds half a surrogate pair; expected whole characters",
            )
    for name in ("reaction", "verdict", "dropped"):
        inner = getattr(value, name, None)
        if inner is not None:
            yield from _surrogate_problems(inner)
    for item in getattr(value, "feedback", ()):
        yield from _surrogate_problems(item)


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
