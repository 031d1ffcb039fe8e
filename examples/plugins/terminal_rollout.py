"""An agent at a shell. THIS RUNS WHAT THE MODEL WRITES: use it in a container, or as a user with nothing to lose.

    openclaw-rl rollout --rollout-function-path examples/plugins/terminal_rollout.py --prompt "Make a file hello."

Each rollout has a temporary folder for its working directory, a bare environment and ten seconds for a command. That
keeps accidents small; it is no sandbox, for the command may still reach whatever your user may.
"""

import asyncio
import subprocess
import tempfile
from pathlib import Path

SECONDS = 10
CHARS = 2000  # of output that the model is shown
DONE = "done"


def initialize_terminal(folder: str) -> str:
    """The first state."""
    return get_terminal_state(folder, None)


def get_terminal_state(folder: str, result: subprocess.CompletedProcess | None) -> str:
    """What the model is shown: the last output, and the files."""
    files = ", ".join(sorted(p.name for p in Path(folder).iterdir())) or "none"
    if result is None:
        return f"files: {files}"
    said = (result.stdout + result.stderr)[-CHARS:]
    return f"exit code {result.returncode}\n{said}\nfiles: {files}"


def run_command(command: str, folder: str) -> subprocess.CompletedProcess:
    """With a time limit."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": folder}
    try:
        return subprocess.run(
            ["/bin/sh", "-c", command], cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"stopped after {SECONDS} seconds")


def compute_terminal_reward(result: subprocess.CompletedProcess, task_description: str) -> float:
    """Did the command work at all? Write your own check of the task here."""
    return 1.0 if result.returncode == 0 else -1.0


def task_completed(result: subprocess.CompletedProcess, task_description: str) -> bool:
    """The agent says so, by `echo done`."""
    return result.returncode == 0 and result.stdout.strip().endswith(DONE)


async def terminal_rollout(agent_model, task_description: str) -> list[dict]:
    """`MAX_STEPS` is supplied: rollout.max_turns. The output of a command is the reaction to it."""
    trajectory = []
    with tempfile.TemporaryDirectory() as folder:
        terminal_state = initialize_terminal(folder)
        for _ in range(MAX_STEPS):  # noqa: F821
            command = await agent_model.generate(
                f"Task: {task_description}\nSay `echo {DONE}` when it is done.\n"
                f"Current state: {terminal_state}\nCommand:"
            )
            result = await asyncio.to_thread(run_command, command, folder)
            reward = compute_terminal_reward(result, task_description)
            trajectory.append({"command": command, "output": result.stdout, "error": result.stderr, "reward": reward})
            terminal_state = get_terminal_state(folder, result)
            if task_completed(result, task_description):
                break
        await agent_model.feedback(score=int(reward), comment=terminal_state)  # of the last step, which nothing follows
    return trajectory
