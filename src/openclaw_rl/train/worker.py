"""Worker of the train stage: claims judged turns, takes a step, and publishes the next policy version."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.worker_loop import WorkThreads, run_worker_loop
from openclaw_rl.errors import StartStopped
from openclaw_rl.gates.make_gate import make_gate
from openclaw_rl.gates.reply_source import ReplySource
from openclaw_rl.methods.registry import make_method
from openclaw_rl.practice.make_practice import make_practice, no_practice_reason
from openclaw_rl.render.model_folder import ModelFiles, compute_identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import trainer_spec
from openclaw_rl.store import file_digests, heartbeats
from openclaw_rl.store.db import Store
from openclaw_rl.store.lessons.refused_texts import RefusedTexts
from openclaw_rl.store.lineage import policies
from openclaw_rl.store.lineage.policy_names import require_owner, start_policies
from openclaw_rl.train.checkpoints import CheckpointWriter
from openclaw_rl.train.context import LoopParts
from openclaw_rl.train.orchestrator import TrainLoop
from openclaw_rl.train.ranks import launcher
from openclaw_rl.train.sample_builder import SampleBuilder
from openclaw_rl.train.satisfaction_watch import SatisfactionWatch
from openclaw_rl.train.tracking import MetricsTracker

log = logging.getLogger(__name__)


async def run(
    config: Config,
    *,
    stop: asyncio.Event,
    on_loaded: Callable[[Collection[int]], None] = lambda threads: None,
) -> None:
    """Run the train worker until `stop` is set.

    Calls `on_loaded` once the model is loaded, with the native ids of the threads that keep their priority.

    Consumes: judged turns that have a signal for the method and were not used on the head's lineage; with
    `train.batch.max_uses` 2 also turns that were used there once.
    Produces: policy versions (folder, row, uses), and the reasons of turns that cannot train.
    Waits for: `train.batch.min_turns` such turns (times `train.batch.gradient_accumulation_steps`), or one that is
    `train.batch.max_wait` old; the lease, while another trainer holds it; forever, once `train.max_steps` is reached.
    Unblocked by: the judge's commits; the end of the other trainer's lease.
    """
    if config.train.launch.node_rank > 0:
        await launcher.join_as_worker(config, stop=stop)
        return
    store = await asyncio.to_thread(Store.open, config.store_path)
    threads = WorkThreads()
    try:
        heartbeats.write_heartbeat(store, "train", "starting", heartbeats.STARTING)
        await asyncio.to_thread(_hash_weights, config, store, stop)
        heartbeats.write_heartbeat(store, "train", "loading the base model", heartbeats.STARTING)
        loop = await asyncio.to_thread(open_train_loop, config, store)
        on_loaded(threads.fair_ids)
        train = config.train
        turns = f"{train.batch.min_step_turns} to {train.batch.max_step_turns} turns"
        log.info("method %s, finetune %s; a step takes %s", train.method, train.finetune, turns)
        without = no_practice_reason(config, make_method(train))
        try:
            await run_worker_loop(
                loop.run_once,
                heartbeats.heartbeat_writer(
                    store,
                    "train",
                    lambda: "; ".join(filter(None, (loop.note, without))),
                    lambda: loop.waits,
                ),
                stop,
                poll=config.train.poll,
                on_stop=loop.forget_attempts,
                pick_executor=threads.pick_executor,
            )
        finally:
            await asyncio.to_thread(loop.close)
    except StartStopped as error:
        log.info("%s", error)
    finally:
        threads.close()
        store.close()


def _hash_weights(config: Config, store: Store, stop: asyncio.Event) -> None:
    """Compute the digests that `open_train_loop` needs, with the progress in the heartbeat."""
    files = ModelFiles.from_config(config.model)
    report = file_digests.heartbeat_reporter(store, "train")
    file_digests.digest_files(store, files.weights, report=report, should_stop=stop.is_set)


def open_train_loop(config: Config, store: Store, replies: ReplySource | None = None) -> TrainLoop:
    """Load the base model and check that the store belongs to it.

    Raises `ModelError`, `IdentityMismatch`, and `ConfigError` for another `policy.per` than the home has.

    `replies`: source of the replies for gate and practice; default: the gateway that runs on the home.
    """
    files = ModelFiles.from_config(config.model)
    identity = compute_identity(files, file_digests.digest_files(store, files.weights))
    with store.write() as conn:
        policies.ensure_root(conn, base=str(files.folder), identity=identity, at=time.time())
        start_policies(conn, require_owner(conn, config.policy.per))
    method = make_method(config.train)
    builder = SampleBuilder(
        renderer=Renderer(files, literal_text=config.serve.special_tokens != "model"),
        transient=EphemeralMatcher(config.serve.ephemeral_patterns),
        signal=method,
        max_staleness=config.train.safety.max_staleness,
        guidance=config.practice.guidance,
        is_refused=RefusedTexts(store, identity).has_any,
    )
    saver = None if config.train.checkpoint.save_dir is None else CheckpointWriter(store, config)
    # Imports torch, so it comes after the fast checks.
    trainer = trainer_spec(config).create(config, method, files.folder)
    run = f"openclaw-rl-{config.train.method}"
    settings = config.train.model_dump(mode="json")
    tracker = MetricsTracker(config.track, config.logs_dir, run=run, settings=settings)
    return TrainLoop(
        store,
        trainer,
        builder,
        config.train,
        config.policies_dir,
        LoopParts(
            engine=config.engine.backend,
            tracker=tracker,
            saver=saver,
            eval_every=config.track.eval_every,
            gate=make_gate(config, store, builder.renderer, replies),
            watch=SatisfactionWatch(store, config.gate, config.policy.per),
            per=config.policy.per,
            practice=make_practice(
                config, store, builder.renderer, builder.transient, method, replies
            ),
        ),
    )
