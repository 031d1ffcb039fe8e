"""Build samples from judged turns, or give the reason why a turn cannot train. Pure, except that it renders hints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from openclaw_rl.common.message_hash import EphemeralMatcher
from openclaw_rl.common.progress import record_progress
from openclaw_rl.errors import RequestError
from openclaw_rl.methods.types import CreditMethod, Sample, make_sample
from openclaw_rl.reasons import Reason, ReasonCode
from openclaw_rl.render.hint import lessons_hint, with_hint
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.train.tracking import version_age
from openclaw_rl.types import (
    FinishReason,
    Ids,
    JudgedTurn,
    Kind,
    Message,
    Origin,
    Policy,
    Reply,
    Request,
    Verdict,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """The samples that can train, and why the other turns cannot, by turn id."""

    samples: list[Sample] = field(default_factory=list)
    dropped: dict[str, Reason] = field(default_factory=dict)
    # Over the turns that can train, by metric name.
    kept_counts: Counter[str] = field(default_factory=Counter)
    # Over the dropped turns, by metric name.
    dropped_counts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBuilder:
    """Builds samples for the policy that is being trained."""

    renderer: Renderer
    transient: EphemeralMatcher
    signal: CreditMethod
    max_staleness: int  # in versions of the head's lineage
    guidance: float = 0.0  # of the teacher in practice (`practice.guidance`)
    # Whether any of these texts costs correctness.
    is_refused: Callable[[Sequence[str]], bool] = lambda texts: False

    def build_batch(
        self,
        turns: Sequence[JudgedTurn],
        head: Policy,
        lineage: Collection[int],
        *,
        replays: Collection[str] = (),
        any_age: bool = False,
    ) -> SampleBatch:
        """Return the samples of each turn or one reason, in their order.

        A turn whose prompt had lessons may have two: one for that prompt, with its score, and one for the plain prompt.

        `lineage`: the head's version and its ancestors; `replays`: turns that one of them was trained on; `any_age`:
        also of turns that are too stale.
        """
        bounded = replace(self, max_staleness=len(lineage)) if any_age else self
        batch = SampleBatch()
        stale_groups = bounded._stale_groups(turns, head, lineage)
        for item in turns:
            record_progress()
            result: Sequence[Sample] | Reason
            if item.episode is not None and item.episode.group in stale_groups:
                result = stale_groups[item.episode.group]
            else:
                result = bounded._build_samples(item, head, lineage, item.turn.id in replays)
            counts = bounded._metric_counts(item, head, lineage)
            if isinstance(result, Reason):
                batch.dropped[item.turn.id] = result
                batch.dropped_counts.update(counts)
            else:
                batch.samples.extend(result)
                batch.kept_counts.update(counts)
        return batch

    def _stale_groups(
        self, turns: Sequence[JudgedTurn], head: Policy, lineage: Collection[int]
    ) -> dict[str, Reason]:
        """Return group -> why none of it trains, of the groups with a turn that is too stale or of another model.

        Only turns with a signal count.
        """
        reasons: dict[str, Reason] = {}
        if not self.signal.uses_episodes:
            return reasons
        for item in turns:
            reply = item.exchange.reply
            if item.episode is None or reply is None or item.episode.group in reasons:
                continue
            if self.signal.no_credit_reason(item.episode) is not None:
                continue
            request = item.exchange.request
            reason = _other_model_reason(request, head)
            if reason is None:
                reason = self._stale_reason(request, reply, lineage)
            if reason is not None:
                detail = f"a group is trained on whole or not at all; {item.turn.id}: {reason}"
                reasons[item.episode.group] = Reason(reason.code, detail)
        return reasons

    def _build_samples(
        self, item: JudgedTurn, head: Policy, lineage: Collection[int], replay: bool
    ) -> Sequence[Sample] | Reason:
        request = item.exchange.request
        reply = item.exchange.reply
        if reply is None:
            return Reason(ReasonCode.NO_REPLY, "the reply is missing")
        too_old = self._stale_reason(request, reply, lineage)
        reason = _unfit_reason(request, reply, head, too_old)
        if reason is not None:
            return reason
        reward = None
        if self.signal.uses_reward:
            reward = _binary_reward(item.verdict, reply)
        hinted: tuple[Ids, ...] = ()
        if self.signal.uses_hints:
            hinted = self._hinted_prompts(item, len(reply.response_ids))
        if self.signal.uses_episodes:
            reason = self._no_episode_reason(item)
        elif reward is None and not hinted:
            reason = _no_signal_reason(item.verdict, reply)
        if reason is not None:
            return reason
        version = _oldest_version(request, reply)
        try:
            sample = make_sample(
                item,
                reply,
                temperature=request.sampling.temperature,
                version=version,
                reward=reward,
                weight=item.verdict.weight,
                hinted_prompts=hinted,
                on_policy=version == head.version and request.origin is None,
                replay=replay,
                guidance=self._teacher_guidance(request),
                episode=item.episode,
            )
            if request.lessons and hinted:
                return self._split_prompts(sample, request)
            return [sample]
        except (ValueError, RequestError) as error:
            # A broken engine recorded bad values: only the turn is dropped.
            return Reason(ReasonCode.INVALID_VALUES, str(error))

    def _teacher_guidance(self, request: Request) -> float | None:
        """Return the guidance of the teacher: of practice, but not of contrasts, whose prompt the policy reads, too."""
        if request.kind is not Kind.PRACTICE or request.origin is Origin.CONTRAST:
            return None
        return self.guidance

    def _no_episode_reason(self, item: JudgedTurn) -> Reason | None:
        if item.episode is None:
            detail = (
                "it belongs to no episode with a known reward, and the method compares episodes"
            )
            return Reason(ReasonCode.NO_EPISODE, detail)
        return self.signal.no_credit_reason(item.episode)

    def _split_prompts(self, sample: Sample, request: Request) -> list[Sample]:
        """Return the sample for the prompt as sampled, if it has a score, and the one that teaches the plain prompt."""
        # Teaches to follow the words that are in its prompt.
        is_contrast = request.origin is Origin.CONTRAST
        plain = replace(
            sample,
            prompt_ids=request.prompt_ids
            if is_contrast
            else self._replace_hint(request, request.messages),
            reward=None,
            on_policy=False,
            from_teacher=True,
        )
        return [replace(sample, hinted_prompts=()), plain] if sample.reward is not None else [plain]

    def _stale_reason(
        self, request: Request, reply: Reply, lineage: Collection[int]
    ) -> Reason | None:
        version = _oldest_version(request, reply)
        steps = version_age(lineage, version)
        # Imported turns are checked by their gap.
        if request.origin is not None or steps <= self.max_staleness:
            return None
        return Reason(
            ReasonCode.TOO_STALE,
            f"too stale: answered by version {version}, {steps} versions ago "
            f"(train.safety.max_staleness {self.max_staleness})",
        )

    def _metric_counts(
        self, item: JudgedTurn, head: Policy, lineage: Collection[int]
    ) -> dict[str, int]:
        """Return the metric counts of one turn, whether it trains or not."""
        request = item.exchange.request
        reply = item.exchange.reply
        if reply is None:
            return {}
        old = (
            request.identity == head.identity
            and self._stale_reason(request, reply, lineage) is not None
        )
        return {
            "dropped/stale": int(old),
            "truncated": int(reply.finish_reason is FinishReason.LENGTH),
        }

    def _hinted_prompts(self, item: JudgedTurn, response: int) -> tuple[Ids, ...]:
        """Return the prompt with each hint; omit hints that cannot be inserted or exceed the context length.

        Where lessons stood in the prompt of a reply that was liked, the prompt as sampled is the hinted one.

        A text that is known to make the base answer wrong teaches nothing.
        """
        request = item.exchange.request
        limit = self.renderer.context_length
        out = list[Ids]()
        if request.lessons and item.verdict.score == 1:
            return () if self.is_refused(list(request.lessons.values())) else (request.prompt_ids,)
        for hint in item.verdict.hints:
            if self.is_refused([hint]):
                continue
            try:
                hinted = with_hint(
                    request.messages, hint, self.transient, self.renderer.hint_format
                )
                ids = self._replace_hint(request, hinted)
            except (ValueError, RequestError):
                continue
            if limit is None or len(ids) + response <= limit:
                out.append(ids)
        return tuple(out)

    def _replace_hint(self, request: Request, messages: Sequence[Message]) -> Ids:
        """Return the stored prompt with these messages, which differ from those that were sampled by a hint.

        Raises `ValueError` and `RequestError` if a conversation cannot be rendered.
        """
        sampled = request.messages
        if request.lessons:
            lessons = lessons_hint(request.lessons.values())
            sampled = with_hint(sampled, lessons, self.transient, self.renderer.hint_format)
        before, after = (
            self.renderer.render(some, request.tools, variables=request.template).prompt_ids
            for some in (sampled, messages)
        )
        return splice_hint(request.prompt_ids, before, after)


def splice_hint(stored: Ids, plain: Ids, hinted: Ids) -> Ids:
    """Insert the hint's change into the stored prompt, and return the hinted prompt.

    The stored prompt may have a history that rendering again (`plain`) does not reproduce: replies in tokens that no
    tokenizer would choose, or reasoning that the client dropped. `plain` and `hinted` differ in one range of tokens.
    That range is copied into the stored prompt if the stored prompt equals `plain` from the range to the end, or from
    the start to the end of the range. Otherwise `hinted` is returned.
    """
    before = _common_prefix(plain, hinted)
    after = _common_prefix(plain[before:][::-1], hinted[before:][::-1])
    # From the change to the end; what it replaces.
    changed = len(plain) - before
    replaced = len(plain) - before - after
    new = hinted[before : len(hinted) - after]
    if changed <= len(stored) and np.array_equal(stored[len(stored) - changed :], plain[before:]):
        at = len(stored) - changed
    elif np.array_equal(stored[: before + replaced], plain[: before + replaced]):
        at = before
    else:
        return hinted
    return np.concatenate([stored[:at], new, stored[at + replaced :]]).astype(np.int32)


def _common_prefix(a: Ids, b: Ids) -> int:
    """Return the length of the common prefix of `a` and `b`."""
    n = min(len(a), len(b))
    return int(np.argmin(np.append(a[:n] == b[:n], False)))


def oldest_version(turns: Iterable[JudgedTurn]) -> int:
    """Return the oldest version that sampled a token of one of these turns; 0 without turns."""
    found = (
        _oldest_version(item.exchange.request, item.exchange.reply)
        for item in turns
        if item.exchange.reply is not None
    )
    return min(found, default=0)


def _oldest_version(request: Request, reply: Reply) -> int:
    """Return the oldest version that sampled the reply. It may differ from the request's, if an engine was lost."""
    return min((span.version for span in reply.spans), default=request.version)


def _other_model_reason(request: Request, head: Policy) -> Reason | None:
    if request.identity == head.identity:
        return None
    return Reason(
        ReasonCode.OTHER_MODEL,
        "its tokens belong to another model: tokenizer, chat template or base weights have changed "
        f"(identity {request.identity[:12]}, the policy has {head.identity[:12]})",
    )


def _unfit_reason(
    request: Request, reply: Reply, head: Policy, too_old: Reason | None
) -> Reason | None:
    reason = _other_model_reason(request, head) or too_old
    if reason is None:
        reason = request.sampling.untrainable_reason()
    if reason is not None:
        return reason
    if not reply.mask.any():
        return Reason(ReasonCode.NO_TOKEN, "no token of the reply may train")
    return None


def _binary_reward(verdict: Verdict, reply: Reply) -> float | None:
    """Return +1 or -1; None for a verdict of 0, an abstention, or a reply that was cut at its token limit."""
    if not verdict.score or reply.finish_reason is FinishReason.LENGTH:
        return None
    return float(verdict.score)


def _no_signal_reason(verdict: Verdict, reply: Reply) -> Reason:
    if verdict.score and reply.finish_reason is FinishReason.LENGTH:
        detail = "the reply was cut at its token limit: its score says little about its tokens, and there is no hint"
        return Reason(ReasonCode.TRUNCATED, detail)
    if verdict.hints:
        detail = "no hint could be put into the prompt (no user message, or the context is full)"
        return Reason(ReasonCode.HINT_UNUSABLE, detail)
    return Reason(ReasonCode.NO_SIGNAL, "the verdict has nothing that the method can use")
