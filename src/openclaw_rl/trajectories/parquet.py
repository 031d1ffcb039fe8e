"""Write trajectories and rows of turns as Parquet, for `datasets.load_dataset("parquet", ...)`; read trajectories.

A trajectory is a row with the keys of the JSON format as typed columns. Values without a fixed type are JSON text in a
column that ends with `_json`. In memory are one row group while writing, a few rows while reading.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

import msgspec.inspect

from openclaw_rl.errors import OpenClawError
from openclaw_rl.store.rows import from_json, to_json
from openclaw_rl.trajectories.parser import decode_json
from openclaw_rl.trajectories.schema import FileTurn, TrajectoryRefused

SUFFIX = ".parquet"
GROUP_ROWS = 1000
GROUP_BYTES = 8 * 2**20
"""Bytes of JSON. A row group is written when it reaches GROUP_ROWS rows or GROUP_BYTES bytes."""
READ_ROWS = 8
_JSON_SUFFIX = "_json"
_UNTYPED_KEYS = frozenset({"messages", "message", "tools", "template", "lessons", "sampling"})
FoundTrajectory = tuple[str, bytes, TrajectoryRefused | None, int]
"""(place, the trajectory as JSON, its problem, bytes of the file read so far), as `files.read_entries` expects it."""


def import_pyarrow() -> Any:
    """Import and return pyarrow with its Parquet module. Raises `OpenClawError` when it is not installed."""
    try:
        importlib.import_module("pyarrow.parquet")
        return importlib.import_module("pyarrow")
    except ImportError as error:
        raise OpenClawError(
            f"Parquet needs pyarrow, which cannot be imported here ({error}). "
            "Install it with: pip install 'openclaw-rl[data]', or use .jsonl."
        ) from error


# ----------------------------------------------------------------------------------------- writing


@contextmanager
def open_writer(stream: BinaryIO, form: str) -> Iterator[Callable[[bytes], None]]:
    """Yield a function that appends a trajectory as JSON (`form` "turns": a flat row). Raises `OpenClawError`."""
    pa = import_pyarrow()
    schema = _row_schema(pa) if form == "turns" else _trajectory_schema(pa)
    buffered: list[bytes] = []
    size = 0

    with pa.parquet.ParquetWriter(stream, schema, compression="zstd") as file:

        def write_group() -> None:
            nonlocal size
            rows = [from_json(raw) for raw in buffered]
            if form != "turns":
                rows = [_trajectory_to_columns(row) for row in rows]
            try:
                file.write_table(pa.Table.from_pylist(rows, schema=schema))
            except UnicodeEncodeError as error:
                raise OpenClawError(
                    f"Parquet cannot hold half a surrogate pair ({error.reason}); export to .jsonl"
                ) from error
            buffered.clear()
            size = 0

        def add_json(raw: bytes) -> None:
            nonlocal size
            buffered.append(raw)
            size += len(raw)
            if len(buffered) >= GROUP_ROWS or size >= GROUP_BYTES:
                write_group()

        yield add_json
        if buffered:
            write_group()


def _trajectory_to_columns(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    return {**trajectory, "turns": [_turn_to_columns(turn) for turn in trajectory["turns"]]}


def _turn_to_columns(turn: Mapping[str, Any]) -> dict[str, Any]:
    """Return a turn of the JSON format as columns."""
    columns: dict[str, Any] = {}
    for key, value in turn.items():
        has_messages = key == "next_state" and isinstance(value, list)
        if has_messages:
            columns[key] = None
        if has_messages or key in _UNTYPED_KEYS:
            columns[key + _JSON_SUFFIX] = to_json(value).decode()
        else:
            columns[key] = value
    return columns


def _turn_type(pa: Any) -> Any:
    """Return the columns of a turn: the fields of `FileTurn`, and JSON text for those without a fixed type."""
    columns = {}
    for each in _fields_of(FileTurn):
        if each.name in _UNTYPED_KEYS:
            columns[each.name + _JSON_SUFFIX] = pa.string()
        else:
            columns[each.name] = _column_type(pa, each.name, each.type)
    return pa.struct(columns | {"next_state" + _JSON_SUFFIX: pa.string()})


def _fields_of(kind: type) -> Sequence[msgspec.inspect.Field]:
    described = msgspec.inspect.type_info(kind)
    assert isinstance(described, msgspec.inspect.DataclassType)
    return described.fields


def _column_type(pa: Any, name: str, kind: msgspec.inspect.Type) -> Any:
    """Return the type of the column for a field. Scores and log-probabilities have smaller types than their values."""
    match kind:
        case msgspec.inspect.UnionType(types=types):
            return _column_type(pa, name, types[0])
        case (
            msgspec.inspect.ListType(item_type=item) | msgspec.inspect.VarTupleType(item_type=item)
        ):
            return pa.list_(_column_type(pa, name, item))
        case msgspec.inspect.DataclassType(fields=fields):
            return pa.struct({each.name: _column_type(pa, each.name, each.type) for each in fields})
        case msgspec.inspect.FloatType():
            return pa.float32() if name == "logprobs" else pa.float64()
        case msgspec.inspect.IntType() | msgspec.inspect.LiteralType():
            return pa.int8() if name == "score" else pa.int32()
        case msgspec.inspect.BoolType():
            return pa.bool_()
        case _:
            return pa.string()


def _trajectory_schema(pa: Any) -> Any:
    return pa.schema({"session_id": pa.string(), "turns": pa.list_(_turn_type(pa))})


def _row_schema(pa: Any) -> Any:
    text = pa.string()
    ids = pa.list_(pa.int32())
    names = (
        "session_id turn_id type untrainable state agent prompt response next_state messages_json reply_json "
        "tools_json hints_json finish"
    )
    return pa.schema(
        dict.fromkeys(names.split(), text)
        | {name: pa.bool_() for name in ("trainable", "judged", "off_policy")}
        | {
            "prompt_ids": ids,
            "response_ids": ids,
            "logprobs": pa.list_(pa.float32()),
            "mask": pa.list_(pa.bool_()),
        }
        | {
            "score": pa.int8(),
            "version": pa.int32(),
            "temperature": pa.float64(),
            "asked_at": pa.float64(),
        }
    )


# ----------------------------------------------------------------------------------------- reading


def read_trajectories(stream: BinaryIO, size: int) -> Iterator[FoundTrajectory]:
    """Yield the trajectories of a file of `size` bytes. Raises `OpenClawError` when pyarrow is not installed."""
    pa = import_pyarrow()
    number = 0
    try:
        file = pa.parquet.ParquetFile(stream)
        names = file.schema_arrow.names
        total = file.metadata.num_rows
        if "turns" not in names:
            yield "", b"", _wrong_columns(names), size
            return
        for batch in file.iter_batches(batch_size=READ_ROWS, use_threads=False):
            for row in batch.to_pylist():
                number += 1
                yield _read_row(row, number, size * number // total)
    except (pa.ArrowException, OSError, ValueError) as error:
        message = " ".join(str(error).split())[:200]
        place = f"after row {number}" if number else ""
        yield (
            place,
            b"",
            TrajectoryRefused("not Parquet", f"expected a complete Parquet file: {message}"),
            size,
        )


def _wrong_columns(names: Sequence[str]) -> TrajectoryRefused:
    if "turn_id" in names:
        return TrajectoryRefused(
            "no turns", "rows of turns are not trajectories; export without --format turns"
        )
    return TrajectoryRefused(
        "no turns", f"expected the columns session_id and turns, got {', '.join(names[:8])[:200]}"
    )


def _read_row(row: Mapping[str, Any], number: int, read: int) -> FoundTrajectory:
    place = f"row {number}"
    try:
        return place, to_json(_row_to_json(row)), None, read
    except TrajectoryRefused as problem:
        return place, b"", problem, read
    except (TypeError, ValueError, RecursionError) as error:
        message = f"expected values that JSON can represent: {str(error)[:200]}"
        return place, b"", TrajectoryRefused("wrong type", message), read


def _row_to_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row in the JSON format. Null columns are omitted: a column does not distinguish null and absent."""
    out = {key: value for key, value in row.items() if value is not None}
    turns = out.get("turns")
    if isinstance(turns, list):
        out["turns"] = [
            _columns_to_turn(t, at) if isinstance(t, dict) else t for at, t in enumerate(turns, 1)
        ]
    return out


def _columns_to_turn(turn: Mapping[str, Any], number: int) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in turn.items():
        if value is None:
            continue
        name = key.removesuffix(_JSON_SUFFIX)
        if name == key:
            out[name] = _drop_nulls(value)
        else:
            out[name] = _decode_column(key, value, number)
    _add_scores(out.get("verdict"))
    return out


def _add_scores(verdict: Any) -> None:
    """Add the scores that are null, which `_drop_nulls` has dropped from a verdict and its votes."""
    if not isinstance(verdict, dict):
        return
    for scored in (verdict, *verdict.get("votes", ())):
        if isinstance(scored, dict):
            scored.setdefault("score", None)


def _decode_column(key: str, value: Any, number: int) -> Any:
    if not isinstance(value, str):
        raise TrajectoryRefused("not JSON", f"{key}: expected JSON as text", number)
    return decode_json(value.encode(errors="surrogatepass"), f"{key}: ", number)


def _drop_nulls(value: Any) -> Any:
    """Return structs without their null fields."""
    if isinstance(value, dict):
        return {key: _drop_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [_drop_nulls(item) for item in value]
    return value
