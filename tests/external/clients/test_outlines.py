"""Outlines with its SGLang model, unmodified: each form that it asks for is forced."""

from __future__ import annotations

import json
from typing import Any, Literal

import outlines
import pytest
from outlines.types import CFG, Regex
from pydantic import BaseModel
from tests.external.clients.conftest import Talk

GRAMMAR = '?start: "yes" | "no"'


class City(BaseModel):
    """A form with two fields."""

    name: str
    inhabitants: int


ROME = '{"name": "Rome", "inhabitants": 3}'
FORMS: dict[str, tuple[Any, str]] = {
    "pattern": (Regex("[a-z]{4}"), "rome"),
    "choice": (Literal["yes", "no"], "yes"),
    "schema": (City, ROME),
}


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_forced(talk: Talk, form: str, is_streamed: bool) -> None:
    """The engine gets a grammar, and the reply is never trained on."""
    output_type, text = FORMS[form]
    talk.says(text)
    model = outlines.from_sglang(talk.site.client(), "openclaw")
    pieces = model.stream if is_streamed else model
    assert "".join(pieces("Which city?", output_type)) == text
    exchange = talk.site.last()
    assert exchange.request.sampling.grammar is not None
    assert exchange.request.sampling.untrainable_reason() is not None


def test_a_context_free_grammar_is_forced(talk: Talk) -> None:
    talk.says("yes")
    model = outlines.from_sglang(talk.site.client(), "openclaw")
    assert model("Is Rome large?", CFG(GRAMMAR)) == "yes"
    assert talk.site.last().request.sampling.grammar is not None


def test_free_text_is_trainable(talk: Talk) -> None:
    talk.says("Rome.")
    model = outlines.from_sglang(talk.site.client(), "openclaw")
    assert model("Which city?") == "Rome."
    assert talk.site.last().request.sampling.untrainable_reason() is None


def test_a_schema_is_read_back(talk: Talk) -> None:
    talk.says(ROME)
    model = outlines.from_sglang(talk.site.client(), "openclaw")
    assert json.loads(model("Which city?", City)) == {"name": "Rome", "inhabitants": 3}
