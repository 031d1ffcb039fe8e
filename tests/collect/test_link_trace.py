"""A reader who follows one request through `link_request` visits few functions and seldom climbs back up."""

from __future__ import annotations

from benchmarks.link_trace import (
    MAX_CLIMBS,
    MAX_FUNCTIONS,
    VisitedFunction,
    count_climbs,
    trace_link,
)


def test_one_request_is_followed_through_few_functions() -> None:
    link, visited = trace_link()
    assert [(answer.turn, answer.how) for answer in link.reaction_links] == [("4", "exact")]
    names = {function.name for function in visited}
    assert {"_find_callers", "_match_next", "_match_distinctive", "_match_certain"} <= names
    local = [function for function in visited if function.file.startswith("collect/")]
    assert len(local) <= MAX_FUNCTIONS, local
    assert count_climbs(local) <= MAX_CLIMBS, local


def test_a_climb_goes_up_in_a_file_or_back_to_one() -> None:
    places = [("a", 1), ("a", 9), ("a", 5), ("b", 1), ("b", 2), ("a", 10), ("a", 11), ("c", 1)]
    visited = [VisitedFunction(file, line, f"{file}{line}") for file, line in places]
    assert count_climbs(visited) == 2
    assert count_climbs([]) == 0
