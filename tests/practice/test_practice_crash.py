"""A trainer that is killed in the middle of practice: nothing is trained on twice, and nothing is left half done."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.practice.conftest import SHORT, MakeLoop, add_lesson, settle

from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons import lessons, practice_turns
from openclaw_rl.store.lineage import policies

pytestmark = pytest.mark.system

Fill = Callable[..., list[str]]
CHILD = """
import os, signal, sys, time
from pathlib import Path
from tests.practice.conftest import DivergingTrainer, ScriptedReplies
from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.rules.lesson_topics import load_topics
from openclaw_rl.methods.registry import make_method
from openclaw_rl.practice.prompts import PromptSelector
from openclaw_rl.practice.session import PracticeSession
from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import STARTER, train_settings
from openclaw_rl.settings.schema_practice import PracticeConfig
from openclaw_rl.store.db import Store
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.sample_builder import SampleBuilder

home, moment = Path(sys.argv[1]), sys.argv[2]

def die(where):
    if moment == where:
        os.kill(os.getpid(), signal.SIGKILL)

class Trainer(DivergingTrainer):
    def step(self, samples, out):
        die("turns are stored")
        result = super().step(samples, out)
        die("the folder is written")
        return result

class Replies(ScriptedReplies):
    def generate(self, orders):
        if self.orders:
            die("half of the replies are there")
        return super().generate(orders)

store, renderer = Store.open(home / "store.db"), Renderer(ModelFiles.from_path(STARTER))
transient = EphemeralMatcher([])
method = make_method(train_settings({"method": "combine"}))
builder = SampleBuilder(renderer=renderer, transient=transient, signal=method, max_staleness=64)
topics = load_topics(None)
selector = PromptSelector(renderer=renderer, transient=transient, key=store.secret, read_topics=lambda: topics)
settings, replies = PracticeConfig(replies=4, max_divergence=0.04), Replies(renderer.stop_token_ids[0])
practice = PracticeSession(store, settings, selector, replies)
train = train_settings({"batch_min": 4, "batch_max": 4, "safety.lease_ttl": 0.5})
loop = TrainLoop(store, Trainer(), builder, train, home / "policies", LoopParts(practice=practice))
while True:
    loop.run_once()
"""


def start(home: Path, moment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(home), moment], stdout=subprocess.PIPE, text=True
    )


def check_whole(store: Store, folder: Path) -> None:
    """Each turn of practice has at most one use, each version its folder and a whole batch, and nothing waits."""
    with store.read() as conn:
        versions = policies.list_all(conn)
        used = Counter(
            use.turn
            for policy in versions
            for use in policies.uses_of_version(conn, policy.version)
        )
        assert all(number == 1 for number in used.values())
        assert practice_turns.pending_turns(conn) == []
        sizes = [len(policies.uses_of_version(conn, policy.version)) for policy in versions[1:]]
        assert set(sizes) == {4}
        lesson = lessons.get(conn, "aa")
        assert lesson is not None
        assert lesson.learned_version == versions[-2].version, "measured by the last step"
        assert [version for version, _ in lessons.divergences_of(conn, "aa")] == [
            p.version for p in versions[:-1]
        ]
    assert {Path(str(p.path)).name for p in versions[1:]} == {
        path.name for path in folder.iterdir()
    }


@pytest.mark.parametrize(
    "moment", ["half of the replies are there", "turns are stored", "the folder is written"]
)
def test_a_trainer_killed_during_practice_leaves_nothing_half_done(
    store: Store, make_loop: MakeLoop, fill: Fill, tmp_path: Path, moment: str
) -> None:
    (turn,) = fill(store, 1)
    add_lesson(store, SHORT, [turn])
    child = start(tmp_path, moment)
    child.communicate(timeout=600)
    assert child.returncode == -signal.SIGKILL
    with store.read() as conn:
        assert len(practice_turns.pending_turns(conn)) == (0 if "half" in moment else 4)
        assert policies.head(conn).version == 0
    loop = make_loop(max_divergence=0.04)
    while True:
        settle(loop)
        with store.read() as conn:
            if not lessons.list_lessons(conn, states=[lessons.LessonState.ACTIVE]):
                break
    check_whole(store, tmp_path / "policies")
