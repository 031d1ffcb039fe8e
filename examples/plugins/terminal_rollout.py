"""Agent in a shell. THIS RUNS WHAT THE MODEL WRITES: use it in a container, or as a user without valuable files.

    openclaw-rl rollout --rollout-function-path examples/plugins/terminal_rollout.py --prompt "Make a file hello."

Each rollout has a temporary working directory, a minimal environment and ten seconds per command. This limits
accidents, but it is not a sandbox: a command can access everything that your user can.
"""

import asyncio
import subprocess
import tempfile
from pathlib import Path

SECONDS = 10
CHARS = 2000  # of output that the model sees
DONE = "done"


def initialize_terminal(folder: str) -> str:
    """Return the first state."""
    return get_terminal_state(folder, None)


def get_terminal_state(folder: str, result: subprocess.CompletedProcess | None) -> str:
    """Return the text that the model sees: the last output, and the files."""
    files = ", ".join(sorted(p.name for p in Path(folder).iterdir())) or "none"
    if result is None:
        return f"files: {files}"
    said = (result.stdout + result.stderr)[-CHARS:]
    return f"exit code {result.returncode}\n{said}\nfiles: {files}"


def run_command(command: str, folder: str) -> subprocess.CompletedProcess:
    """Run a command with a time limit."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": folder}
    try:
        return subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"stopped after {SECONDS} seconds")


def compute_terminal_reward(result: subprocess.CompletedProcess, task_description: str) -> float:
    """Return 1 if the command succeeded, else -1. Write your own check of the task here."""
    return 1.0 if result.returncode == 0 else -1.0


def task_completed(result: subprocess.CompletedProcess, task_description: str) -> bool:
    """Return whether the agent has reported the end, by `echo done`."""
    return result.returncode == 0 and result.stdout.strip().endswith(DONE)


async def terminal_rollout(agent_model, task_description: str) -> list[dict]:
    """Run one task. `MAX_STEPS` is a supplied global, rollout.max_turns. A command's output is its reaction."""
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
            trajectory.append(
                {
                    "command": command,
                    "output": result.stdout,
                    "error": result.stderr,
                    "reward": reward,
                }
            )
            terminal_state = get_terminal_state(folder, result)
            if task_completed(result, task_description):
                break
        await agent_model.feedback(
            score=int(reward), comment=terminal_state
        )  # the last step has no reaction
    return trajectory
