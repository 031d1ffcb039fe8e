"""Convert a stored exchange of any dialect to a Response object and its input items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openclaw_rl.common.images.image_prompt import has_images
from openclaw_rl.common.message_hash import message_text
from openclaw_rl.render.chat_template import content_text
from openclaw_rl.serve.chat_request import ReplyHeader, TokenUsage
from openclaw_rl.serve.dialects import openai_responses_output as out
from openclaw_rl.serve.dialects.openai_responses import DEFAULT_ECHO
from openclaw_rl.serve.dialects.openai_responses_input import ID_PREFIX, has_instructions
from openclaw_rl.serve.dialects.openai_responses_output import Item, ItemIdGenerator
from openclaw_rl.serve.dialects.openai_responses_tools import (
    CUSTOM_TOOL_PARAMETERS,
    LOCAL_SHELL,
    ToolOrigin,
)
from openclaw_rl.types import Exchange, ExchangeStatus, Message, Request

_RESPONSE_STATUS = {ExchangeStatus.CANCELLED: "cancelled", ExchangeStatus.FAILED: "failed"}


def stored_response(exchange: Exchange, model: str, *, reasoning: int) -> Item:
    """Return the Response object of a stored exchange. `reasoning`: number of reasoning tokens of the reply.

    Fields that are not stored have defaults: metadata, text format, tool choice, `max_output_tokens`, cached tokens.
    """
    request = exchange.request
    reply = exchange.reply
    header = ReplyHeader(
        id=request.id,
        created=int(request.admitted_at),
        model=model,
        version=request.version,
    )
    if reply is None:
        return out.response_object(header, _echoed_fields(request), out.IN_PROGRESS)
    if reply.spans:
        header = replace(header, version=reply.spans[0].version)
    status = _RESPONSE_STATUS.get(reply.status) or out.status_of(reply.finish_reason)
    is_completed = status == out.COMPLETED
    items = out.output_items(
        reply.message,
        ItemIdGenerator(request.id),
        _tool_origins(request.tools),
        status=out.COMPLETED if is_completed else out.INCOMPLETE,
    )
    error = None
    if status == "failed":
        error = {"code": "server_error", "message": reply.error or "the reply failed"}
    response = out.response_object(header, _echoed_fields(request), status, items, error=error)
    response["completed_at"] = int(reply.finished_at) if is_completed else None
    usage = TokenUsage(
        prompt_tokens=len(request.prompt_ids),
        completion_tokens=len(reply.response_ids),
        reasoning_tokens=reasoning,
    )
    response["usage"] = out.usage_fields(usage)
    return response


def _echoed_fields(request: Request) -> dict[str, Any]:
    sampling = request.sampling
    instructions = request.messages[0]["content"] if has_instructions(request) else None
    effort = request.template.get("reasoning_effort")
    known = {
        "instructions": instructions,
        "previous_response_id": request.previous,
        "reasoning": {"effort": effort if isinstance(effort, str) else None, "summary": None},
        "temperature": sampling.temperature,
        "tools": [_tool_definition(t["function"]) for t in request.tools],
        "top_p": sampling.top_p,
        "user": request.user or None,
    }
    return {**DEFAULT_ECHO, **known}


def _tool_definition(function: Mapping[str, Any]) -> Item:
    kind = _tool_kind(function)
    if kind == LOCAL_SHELL:
        return {"type": LOCAL_SHELL}
    named = {"name": function["name"], "description": function.get("description")}
    if kind == "custom":
        return {"type": kind} | named
    return {"type": kind} | named | {"parameters": function.get("parameters"), "strict": None}


def _tool_kind(function: Mapping[str, Any]) -> str:
    if function.get("parameters") == CUSTOM_TOOL_PARAMETERS:
        return "custom"
    return LOCAL_SHELL if function["name"] == LOCAL_SHELL else "function"


def _tool_origins(tools: Sequence[Mapping[str, Any]]) -> dict[str, ToolOrigin]:
    names = {str(t["function"]["name"]): _tool_kind(t["function"]) for t in tools}
    return {name: ToolOrigin(kind, name) for name, kind in names.items()}


def input_items(exchange: Exchange) -> list[Item]:
    """Return the input items of the request, oldest first, without its instructions."""
    request = exchange.request
    origins = _tool_origins(request.tools)
    base = request.id.removeprefix(ID_PREFIX)
    items: list[Item] = []
    start = 1 if has_instructions(request) else 0
    for index, message in enumerate(request.messages[start:], start):
        items += _message_items(message, f"in{index:x}{base}", origins)
    return items


def _message_items(message: Message, base: str, origins: Mapping[str, ToolOrigin]) -> list[Item]:
    role = message.get("role")
    if role == "assistant":
        return out.output_items(message, ItemIdGenerator(base), origins)
    text = message_text(message) if has_images([message]) else content_text(message.get("content"))
    if role in ("tool", "function"):
        return [
            {
                "id": f"fco_{base}",
                "type": "function_call_output",
                "call_id": str(message.get("tool_call_id") or ""),
                "output": text,
                "status": "completed",
            }
        ]
    part = {"type": "input_text", "text": text}
    return [
        {
            "id": f"msg_{base}",
            "type": "message",
            "role": role,
            "status": "completed",
            "content": [part],
        }
    ]
