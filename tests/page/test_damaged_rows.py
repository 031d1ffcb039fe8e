"""A row that cannot be read hides itself alone: every view is still shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.page.conftest import OpenPage
from tests.page.learned_home import make_home
from tests.page.test_live_parts import look_at_all_views, record_receipt
from tests.serve.conftest import Start

from openclaw_rl.store.db import Store

DAMAGED = b"{"
COLUMNS = (
    "reactions.messages",
    "verdicts.votes",
    "verdicts.hints",
    "bodies.messages",
    "bodies.lessons",
    "bodies.prompt_ids",
    "replies.message",
    "replies.logprobs",
    "uses.credit",
)


@pytest.mark.parametrize("column", COLUMNS)
def test_every_view_is_shown_beside_damaged_rows(
    tmp_path: Path, start: Start, open_page: OpenPage, column: str
) -> None:
    """Damage of every second row."""
    store = Store.open(make_home(tmp_path).store_path)
    record_receipt(store)
    table, _, name = column.partition(".")
    with store.write() as conn:
        changed = conn.exec_driver_sql(
            f"UPDATE {table} SET {name} = ? WHERE rowid % 2 = 0", (DAMAGED,)
        )
        assert changed.rowcount > 0
    # Raises for a view that is not shown.
    look_at_all_views(open_page(start(store=store)))
