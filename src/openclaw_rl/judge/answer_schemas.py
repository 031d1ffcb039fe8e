"""JSON schemas of the answers of judge, teacher and grader, for endpoints that can constrain an answer.

The reason stands before the score, so that a model gives it before it decides (chain of thought).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NO_EVIDENCE = "no evidence"
AnswerSchema = Mapping[str, Any]


def _answer_schema(name: str, **fields: Any) -> AnswerSchema:
    """Return the value of `response_format`; strict mode needs every field to be required."""
    schema = {
        "type": "object",
        "properties": fields,
        "required": [*fields],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": name, "strict": True, "schema": schema}}


_TEXT = {"type": "string"}
_HINT = {"type": ["string", "null"]}
JUDGE_ANSWER = _answer_schema(
    "verdict",
    reason=_TEXT,
    score={"type": "string", "enum": ["+1", "0", "-1", NO_EVIDENCE]},
    hint=_HINT,
    words=_HINT,
)
TEACHER_ANSWER = _answer_schema("hint", hint=_HINT)
EVALUATION_ANSWER = _answer_schema(
    "grade", reason=_TEXT, score={"type": "string", "enum": ["+1", "0", "-1"]}
)
LESSON_ANSWER = _answer_schema(
    "lesson",
    lesson=_TEXT,
    scope={"type": "string", "enum": ["general", "conversation", "subject", "question"]},
    subject={"type": ["string", "null"]},
    same={"type": ["integer", "null"]},
    contradicts={"type": "array", "items": {"type": "integer"}},
)
