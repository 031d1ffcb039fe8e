"""The statements of a question, and the tables that their query plans scan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event, text

from openclaw_rl.store.schema import metadata

CONSTANT_TABLES = frozenset({"meta", "leases", "cursors", "loops", "attempts", "retraining"})
"""Tables whose size does not depend on the number of turns or policies."""
DESIGNED_SCANS = {"heads": "one row a policy"}
"""Tables that are read whole by design, and their size."""
_SCANNED = re.compile(r"SCAN (\w+)(?: USING (?:COVERING )?INDEX (\w+))?")
_PARAMETER_LIST = re.compile(r"\(\?(?:, \?)+\)")
_ALIAS = re.compile(r"\b(\w+) AS (\w+)\b")


class StatementRecorder:
    """Keeps the statements of all stores of this process while `is_on`.

    Without those that the store hands to the driver itself (`store.db.fast_executemany` and `has_row`), which insert or
    update rows by their keys.
    """

    def __init__(self) -> None:
        self.is_on = False
        self.statements: dict[str, Any] = {}
        """Parameters by statement; of several, the first."""

    def __enter__(self) -> StatementRecorder:
        event.listen(Engine, "before_cursor_execute", self._record)
        return self

    def __exit__(self, *_error: object) -> None:
        event.remove(Engine, "before_cursor_execute", self._record)

    def _record(
        self, conn: Connection, cursor: Any, statement: str, parameters: Any, *_rest: Any
    ) -> None:
        if self.is_on:
            first = parameters[0] if isinstance(parameters, list) else parameters
            self.statements.setdefault(statement, first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """A table that a statement reads from one end to the other, or until a limit is reached."""

    table: str
    index: str | None
    is_partial: bool
    """The index has a part of the rows alone."""
    rows: int
    """Of the table."""
    statement: str

    @property
    def is_bounded(self) -> bool:
        """Return whether the rows are few in every home: those of a small table, or of the part in the index."""
        return self.is_partial or self.table in CONSTANT_TABLES or self.table in DESIGNED_SCANS


def find_scans(conn: Connection, statements: Mapping[str, Any]) -> list[Scan]:
    """Return the scans in the plans of the statements, without those of queries within them."""
    rows = conn.execute(
        text("SELECT name FROM sqlite_master WHERE type = 'index' AND sql LIKE '% WHERE %'")
    )
    partial = set(rows.scalars())
    scans: dict[tuple[str, str | None, str], Scan] = {}
    for statement, parameters in statements.items():
        if statement.split(None, 1)[0].upper() not in (
            "SELECT",
            "UPDATE",
            "DELETE",
            "INSERT",
            "WITH",
        ):
            continue
        aliases = {alias: table for table, alias in _ALIAS.findall(statement)}
        plan = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        for *_, detail in plan.all():
            match = _SCANNED.match(detail)
            if match is None:
                continue
            name, index = match.groups()
            table = aliases.get(name, name)
            if table not in metadata.tables:
                continue
            count = conn.execute(text(f'SELECT count(*) FROM "{table}"')).scalar_one()
            words = _PARAMETER_LIST.sub("(?...)", " ".join(statement.split()))
            scans[table, index, words] = Scan(
                table=table,
                index=index,
                is_partial=index in partial,
                rows=int(count),
                statement=words,
            )
    return list(scans.values())
