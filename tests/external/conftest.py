"""Tests with other people's programs and libraries."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def no_thread_left() -> None:
    """Allow threads to outlive a test: libraries keep some of their own until the process ends."""
