"""Build samples from judged turns, or give the reason why a turn cannot train. Pure, except that it renders hints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import RequestError
from openclaw_rl.methods.types import CreditMethod, EpisodeStep, Sample
from openclaw_rl.render.hint import with_hint
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.train.tracking import version_age
from openclaw_rl.types import FinishReason, Ids, JudgedTurn, Policy, Reply, Request, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """The samples that can train, and why the other turns cannot (turn id -> readable reason)."""

    samples: list[Sample] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    kept_counts: Counter[str] = field(default_factory=Counter)  # over the turns that can train, by metric name
    dropped_counts: Counter[str] = field(default_factory=Counter)  # over the dropped turns, by metric name


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBuilder:
    """Builds samples for the policy that is being trained."""

    renderer: Renderer
    transient: EphemeralMatcher
    signal: CreditMethod
    max_staleness: int  # in versions of the head's lineage

    def build_batch(
        self, turns: Sequence[JudgedTurn], head: Policy, line: Collection[int], *, replay: bool = False
    ) -> SampleBatch:
        """Return one sample or one reason for each turn, in their order.

        `line`: the head's version and its ancestors; `replay`: one of them was trained on these turns.
        """
        batch = SampleBatch()
        for item in turns:
            record_progress()
            made = self._build_sample(item, head, line, replay)
            if isinstance(made, Sample):
                batch.samples.append(made)
                batch.kept_counts.update(self._metric_counts(item, head, line))
            else:
                batch.dropped[item.turn.id] = made
                batch.dropped_counts.update(self._metric_counts(item, head, line))
        return batch

    def _build_sample(self, item: JudgedTurn, head: Policy, line: Collection[int], replay: bool) -> Sample | str:
        request, reply = item.exchange.request, item.exchange.reply
        if reply is None:
            return "the reply is missing"
        version = _oldest_version(request, reply)
        if why := _unfit_reason(request, reply, head, self._stale_reason(request, reply, line)):
            return why
        reward = _binary_reward(item.verdict, reply) if self.signal.uses_reward else None
        hinted = (
            self._hinted_prompts(request, item.verdict.hints, len(reply.response_ids)) if self.signal.uses_hints else ()
        )
        episode = _episode_step(item) if self.signal.uses_episodes else None
        if reward is None and not hinted and episode is None:
            return _no_episode_reason(item) if self.signal.uses_episodes else _no_signal_reason(item.verdict, reply)
        try:
            return Sample(
                turn=item.turn.id,
                agent=request.agent,
                prompt_ids=request.prompt_ids,
                response_ids=reply.response_ids,
                logprobs=reply.logprobs,
                mask=reply.mask,
                temperature=request.sampling.temperature,
                version=version,
                reward=reward,
                hinted_prompts=hinted,
                on_policy=version == head.version and request.origin is None,
                replay=replay,
                episode=episode,
            )
        except ValueError as error:  # a broken engine recorded bad values: only the turn is dropped
            return str(error)

    def _stale_reason(self, request: Request, reply: Reply, line: Collection[int]) -> str | None:
        version = _oldest_version(request, reply)
        steps = version_age(line, version)
        if request.origin is not None or steps <= self.max_staleness:  # imported turns are checked by their gap
            return None
        return (
            f"too stale: answered by version {version}, {steps} versions ago "
            f"(train.safety.max_staleness {self.max_staleness})"
        )

    def _metric_counts(self, item: JudgedTurn, head: Policy, line: Collection[int]) -> dict[str, int]:
        """Return the metric counts of one turn, whether it trains or not."""
        request, reply = item.exchange.request, item.exchange.reply
        if reply is None:
            return {}
        old = request.identity == head.identity and self._stale_reason(request, reply, line) is not None
        return {"dropped/stale": int(old), "truncated": int(reply.finish_reason is FinishReason.LENGTH)}

    def _hinted_prompts(self, request: Request, hints: Sequence[str], response: int) -> tuple[Ids, ...]:
        """Return the prompt with each hint; omit hints that cannot be inserted or exceed the context length."""
        out = []
        limit, variables = self.renderer.context_length, request.template
        for hint in hints:
            try:
                messages = with_hint(request.messages, hint, self.transient)
                plain = self.renderer.render(request.messages, request.tools, variables=variables).prompt_ids
                hinted = self.renderer.render(messages, request.tools, variables=variables).prompt_ids
            except (ValueError, RequestError):
                continue
            ids = splice_hint(request.prompt_ids, plain, hinted)
            if limit is None or len(ids) + response <= limit:
                out.append(ids)
        return tuple(out)


def splice_hint(stored: Ids, plain: Ids, hinted: Ids) -> Ids:
    """Insert the hint's change into the stored prompt, and return the hinted prompt.

    The stored prompt may have a history that rendering again (`plain`) does not reproduce: replies in tokens that no
    tokenizer would choose, or reasoning that the client dropped. `plain` and `hinted` differ in one range of tokens.
    That range is copied into the stored prompt if the stored prompt equals `plain` from the range to the end, or from
    the start to the end of the range. Otherwise `hinted` is returned.
    """
    before = _common_prefix(plain, hinted)
    after = _common_prefix(plain[before:][::-1], hinted[before:][::-1])
    changed, gone = len(plain) - before, len(plain) - before - after  # from the change to the end; what it replaces
    new = hinted[before : len(hinted) - after]
    if changed <= len(stored) and np.array_equal(stored[len(stored) - changed :], plain[before:]):
        at = len(stored) - changed
    elif np.array_equal(stored[: before + gone], plain[: before + gone]):
        at = before
    else:
        return hinted
    return np.concatenate([stored[:at], new, stored[at + gone :]]).astype(np.int32)


def _common_prefix(a: Ids, b: Ids) -> int:
    """Return the length of the common prefix of `a` and `b`."""
    n = min(len(a), len(b))
    return int(np.argmin(np.append(a[:n] == b[:n], False)))


def _oldest_version(request: Request, reply: Reply) -> int:
    """Return the oldest version that sampled the reply. It may differ from the request's, if an engine was lost."""
    return min((span.version for span in reply.spans), default=request.version)


def _unfit_reason(request: Request, reply: Reply, head: Policy, too_old: str | None) -> str | None:
    if request.identity != head.identity:
        return (
            "its tokens belong to another model: tokenizer, chat template or base weights have changed "
            f"(identity {request.identity[:12]}, the policy has {head.identity[:12]})"
        )
    if too_old:
        return too_old
    if why := request.sampling.untrainable_reason():
        return why
    if not reply.mask.any():
        return "no token of the reply may train"
    return None


def _binary_reward(verdict: Verdict, reply: Reply) -> float | None:
    """Return +1 or -1; None for a verdict of 0, an abstention, or a reply that was cut at its token limit."""
    if not verdict.score or reply.finish_reason is FinishReason.LENGTH:
        return None
    return float(verdict.score)


def _episode_step(item: JudgedTurn) -> EpisodeStep | None:
    """Return the turn's place in its episode; None if it does not train with its group."""
    episode = item.episode
    if episode is None or episode.split != "train" or episode.reward is None or item.step is None:
        return None
    return EpisodeStep(group=episode.group, episode=episode.id, step=item.step, outcome=episode.reward)


def _no_episode_reason(item: JudgedTurn) -> str:
    episode = item.episode
    if episode is None:
        return "it belongs to no episode, and the method compares episodes"
    if episode.split != "train":
        return "its task is held out"
    if episode.outcome == "void":
        return "its episode is void: the environment failed"
    if episode.reward is None:
        return "the reward of its episode is not known"
    return "it is on a branch that the end of its episode does not follow"


def _no_signal_reason(verdict: Verdict, reply: Reply) -> str:
    if verdict.score and reply.finish_reason is FinishReason.LENGTH:
        return "the reply was cut at its token limit: its score says little about its tokens, and there is no hint"
    if verdict.hints:
        return "no hint could be put into the prompt (no user message, or the context is full)"
    return "the verdict has nothing that the method can use"
