"""Log-probabilities for turns that were imported without."""

from __future__ import annotations

from collections.abc import Callable

from openclaw_rl.config import Config
from openclaw_rl.render.model_files import ModelFiles
from openclaw_rl.store import arrays, exchanges, imports
from openclaw_rl.store.codec import to_json
from openclaw_rl.store.db import Store
from openclaw_rl.trajectories.importing import Scores, head_of, scorer_of
from openclaw_rl.types import Span

GROUP = 64


def score_waiting(config: Config, store: Store, progress: Callable[[int], None]) -> int:
    """Scores every turn that waits for it, with the head. Returns how many.

    Raises `ModelError`, `IdentityMismatch`, `StoreError`; what was done until then stays.
    """
    files = ModelFiles.of(config.model)
    head = head_of(store, files)
    scorer: Scores | None = None
    after, done = 0, 0
    while True:
        with store.read() as conn:
            waiting = imports.unscored(conn, after=after, limit=GROUP)
            found = exchanges.get_many(conn, [id_ for _, id_ in waiting])
        if not waiting:
            return done
        scorer = scorer or scorer_of(config, files, head)
        turns = [found[id_] for _, id_ in waiting]
        rows = [(e.request.prompt_ids, e.reply.response_ids) for e in turns if e.reply is not None]
        scores = scorer.score(rows, lambda _: None)
        with store.write() as conn:
            for (seq, _), (_, response), logprobs in zip(waiting, rows, scores, strict=True):
                spans = to_json((Span(start=0, end=len(response), version=head.version),))
                packed = arrays.pack_logprobs(logprobs)
                imports.score(conn, seq, logprobs=packed, spans=spans, version=head.version)
        after, done = waiting[-1][0], done + len(waiting)
        progress(len(waiting))
