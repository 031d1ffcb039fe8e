"""An OpenEnv server: say words; each reply gets a reward, and the third ends the episode. `PYTHON FILE PORT`."""

import os
import sys
import time
from typing import Any

import uvicorn
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class SayAction(Action):
    text: str


class PlanAction(SayAction):
    """It has two fields, so that the policy writes it as JSON."""

    plan: dict[str, Any]


class SayObservation(Observation):
    text: str


class SayEnvironment(Environment):  # type: ignore[misc]
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self.said = 0

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **_: Any
    ) -> SayObservation:
        self.said = 0
        return SayObservation(text=f"Say something about number {seed}.")

    def step(self, action: SayAction, timeout_s: float | None = None, **_: Any) -> SayObservation:
        self.said += 1
        if "dies" in sys.argv and self.said > 1:
            os._exit(3)
        if "hangs" in sys.argv and self.said > 1:
            time.sleep(60)
        return SayObservation(text="Go on.", reward=0.25, done=self.said == 3)

    @property
    def state(self) -> State:
        return State(step_count=self.said)


action = PlanAction if "plans" in sys.argv else SayAction
app = create_fastapi_app(SayEnvironment, action, SayObservation, max_concurrent_envs=16)
uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="warning")
