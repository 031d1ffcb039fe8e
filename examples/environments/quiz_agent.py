"""An environment: questions whose answers must be right, and written as a list.

It knows nothing of OpenClaw-RL and needs no library. `openclaw-rl env run` gives it the task and the way to the model:

    openclaw-rl env check command --tasks quiz_tasks.jsonl \\
        --oracle 'python quiz_agent.py --oracle' --nop 'python quiz_agent.py --nop'
    openclaw-rl env run command --tasks quiz_tasks.jsonl --held-out 0.3 -- python quiz_agent.py
"""

import json
import os
import re
import sys
import urllib.request
from pathlib import Path


def ask_model(question: str) -> str:
    """Return the reply to one question. The official `openai` package does the same with the same two variables."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        data=json.dumps(
            {
                "model": os.environ["OPENAI_MODEL"],
                "messages": [{"role": "user", "content": question}],
                "max_tokens": 64,
            }
        ).encode(),
        headers={
            "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=300) as response:
        return str(json.load(response)["choices"][0]["message"]["content"] or "")


def score_reply(reply: str, answer: str) -> dict[str, float]:
    """Return the parts of the reward, each 0 or 1."""
    lines = [line for line in reply.splitlines() if line.strip()]
    is_right = re.search(rf"(?<!\w){re.escape(answer)}(?!\w)", reply) is not None
    return {
        "right": float(is_right),
        "list": float(bool(lines) and all(line.startswith("- ") for line in lines)),
    }


def main() -> None:
    task = json.loads(Path(os.environ["TASK_FILE"]).read_text(encoding="utf-8"))
    if "--oracle" in sys.argv:
        reply = f"- {task['answer']}"
    elif "--nop" in sys.argv:
        reply = ""
    else:
        reply = ask_model(task["question"])
    parts = score_reply(reply, task["answer"])
    reward = parts["right"] * parts["list"]
    Path(os.environ["REWARD_FILE"]).write_text(
        json.dumps({"reward": reward, "parts": parts}), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
