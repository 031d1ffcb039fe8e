"""An environment whose code runs in a remote sandbox."""

import verifiers as vf
from datasets import Dataset


def load_environment() -> vf.Environment:
    return vf.SandboxEnv(
        dataset=Dataset.from_list([{"question": "Run a command."}]), rubric=vf.Rubric(funcs=[len])
    )
