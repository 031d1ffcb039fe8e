"""Agent that calls tools in JSON. It only collects conversations; the trainer trains on them.

    openclaw-rl rollout --rollout-function-path examples/plugins/toolcall_rollout.py --tasks tasks.jsonl

A task may have its own `available_tools`, in the format of TOOLS. RUN has the implementations.
"""

import json
from datetime import UTC, datetime

TOOLS = [
    {
        "name": "add",
        "description": "The sum of a and b.",
        "parameters": {"a": "number", "b": "number"},
    },
    {"name": "today", "description": "Today's date.", "parameters": {}},
]
RUN = {
    "add": lambda a, b: float(a) + float(b),
    "today": lambda: datetime.now(UTC).date().isoformat(),
}


def format_tool_descriptions(tools: list[dict]) -> str:
    """Return one line per tool."""
    return "\n".join(
        f"- {tool['name']}({', '.join(tool['parameters'])}): {tool['description']}"
        for tool in tools
    )


def parse_call(reply: str) -> dict | None:
    """Return the call in a reply, or None if the reply is an answer."""
    start, end = reply.find("{"), reply.rfind("}")
    try:
        call = json.loads(reply[start : end + 1]) if start >= 0 else None
    except ValueError:
        return None
    return call if isinstance(call, dict) and isinstance(call.get("tool"), str) else None


def run_tool(call: dict, tools: list[dict]) -> str:
    """Return the result of the tool, or an error text."""
    if call["tool"] not in {tool["name"] for tool in tools} & RUN.keys():
        return f"error: there is no tool {call['tool']}"
    try:
        return str(RUN[call["tool"]](**call.get("arguments", {})))
    except (TypeError, ValueError) as error:
        return f"error: {error}"


async def collect_toolcall_trajectory(
    model, task: str, available_tools: list[dict] = TOOLS, max_turns: int = 10
):
    """Run one task until a reply is not a call. A tool's result is the reaction to the call."""
    prompt = (
        f"You may use tools:\n{format_tool_descriptions(available_tools)}\n"
        'To use one, answer with {"tool": "name", "arguments": {...}} and nothing else.\n'
        f"Task: {task}"
    )
    trajectory = []
    for _ in range(max_turns):
        reply = await model.generate(prompt)
        call = parse_call(reply)
        result = None if call is None else run_tool(call, available_tools)
        trajectory.append({"reply": reply, "call": call, "result": result})
        if result is None:
            break
        prompt = f"Result of {call['tool']}: {result}"
    return trajectory
