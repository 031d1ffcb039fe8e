"""Worker of the train stage: claims judged turns, takes a step, and publishes the next policy version."""

from __future__ import annotations

import asyncio
import contextlib
import time

from openclaw_rl import methods
from openclaw_rl.common.message_hash import Transience
from openclaw_rl.protocols import Trainer
from openclaw_rl.render.model_folder import ModelFiles, identity
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.settings.load import Config, TrainConfig
from openclaw_rl.store import heartbeats, policies
from openclaw_rl.store.db import Store
from openclaw_rl.train.checkpoints import Saver
from openclaw_rl.train.orchestrator import TrainRoom
from openclaw_rl.train.ranks import launcher
from openclaw_rl.train.sample_builder import Builder
from openclaw_rl.train.tracking import Tracker

BEAT = 1.0  # seconds


async def run(config: Config, *, stop: asyncio.Event) -> None:
    """Run the train worker until `stop` is set.

    Consumes: judged turns that have a signal for the method and were not used on the head's lineage; with `max_uses` 2
    also turns that were used there once.
    Produces: policy versions (folder, row, uses), and the reasons of turns that cannot train.
    Waits for: `batch_min` such turns (times `accumulation`), or one that is `max_wait` old; the lease, while another
    trainer holds it; forever, once `max_steps` is reached.
    Unblocked by: the judge's commits; the end of the other trainer's lease.
    """
    if config.train.launch.node_rank > 0:
        await launcher.lend(config, stop=stop)
        return
    store = await asyncio.to_thread(Store.open, config.store_path)
    try:
        heartbeats.beat(store, "train", "loading the base model", heartbeats.STARTING)
        room = await asyncio.to_thread(open_room, config, store)
        try:
            await _turn_over(room, store, stop, config.train.poll)
        finally:
            await asyncio.to_thread(room.close)
    finally:
        store.close()


async def _turn_over(room: TrainRoom, store: Store, stop: asyncio.Event, poll: float) -> None:
    beaten = 0.0
    while not stop.is_set():
        work = asyncio.create_task(asyncio.to_thread(room.turn))
        while True:
            if time.monotonic() - beaten >= BEAT:
                await asyncio.to_thread(heartbeats.beat, store, "train", room.note)
                beaten = time.monotonic()
            done, _ = await asyncio.wait({work}, timeout=BEAT)
            if done:
                break
        if not work.result():
            await _pause(stop, poll)


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), seconds)


def make_method(train: TrainConfig) -> methods.AnyMethod:
    """Return the method that the settings select."""
    return methods.make(
        train.method,
        decay=train.baseline_decay,
        shrink=train.baseline_shrink,
        clip=train.opd_clip,
        w_binary=train.w_binary,
        w_opd=train.w_opd,
        distill=methods.Distill(
            by=train.distill,
            top=train.topk,
            divergence=train.divergence,
            cap=train.distill_cap,
            hint_choice=train.hint_choice,
        ),
        groups=methods.Groups(scale=train.group_scale, floor=train.group_floor),
    )


def open_room(config: Config, store: Store) -> TrainRoom:
    """Load the base model and check that the store belongs to it. Raises `ModelError`, `IdentityMismatch`."""
    files = ModelFiles.of(config.model)
    with store.write() as conn:
        policies.ensure_root(conn, base=str(files.folder), identity=identity(files), at=time.time())
    method = make_method(config.train)
    builder = Builder(
        renderer=Renderer(files),
        transient=Transience(config.serve.transient_patterns),
        signal=method,
        max_staleness=config.train.max_staleness,
    )
    saver = None if config.train.save_dir is None else Saver(store, config)
    trainer = _trainer(config, files, method)  # imports torch, so it comes after the fast checks
    run, told = f"openclaw-rl-{config.train.method}", config.train.model_dump(mode="json")
    tracker = Tracker(config.track, config.logs_dir, run=run, settings=told)
    return TrainRoom(
        store,
        trainer,
        builder,
        config.train,
        config.policies_dir,
        engine=config.engine.backend,
        tracker=tracker,
        saver=saver,
        eval_every=config.track.eval_every,
    )


def _trainer(config: Config, files: ModelFiles, method: methods.AnyMethod) -> Trainer:
    if config.train.ranks * config.train.launch.nodes > 1:
        return launcher.launched(config)
    from openclaw_rl.learner.trainer import LocalTrainer

    return LocalTrainer(str(files.folder), method, config.train, config.model)
