"""The contract of tests/engines/test_contract.py, as far as a service that answers whole replies can keep it.

Left out: tokens leave one by one, alternatives, and log-probabilities at other temperatures than 1.
"""

from __future__ import annotations

from tests.engines import test_contract

KEPT = (
    "test_a_reply_may_fill_the_context",
    "test_a_prompt_without_room_for_a_reply_is_refused",
    "test_stop_ids_end_the_reply_and_belong_to_it",
    "test_a_seed_reproduces_the_reply_whatever_else_runs",
    "test_an_unknown_version_is_refused",
    "test_more_versions_than_fit_are_refused_and_nothing_changes",
)
globals().update({name: getattr(test_contract, name) for name in KEPT})
