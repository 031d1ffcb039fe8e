"""Evidence from regenerated replies: the head and the candidate answer the same prompts.

The prompts are probes with a checkable answer, and the person's own newest prompts outside of the batch. Replies to the
latter are compared by their form and, where the judge is a language model, in pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openclaw_rl.errors import RequestError
from openclaw_rl.examination.probe_set import Probe
from openclaw_rl.examination.served_forms import ServedForm
from openclaw_rl.gates.evidence import Evidence
from openclaw_rl.gates.lesson_echoes import LessonEchoes
from openclaw_rl.gates.reply_source import GateReply, ReplyOrder, ReplySource
from openclaw_rl.render.chat_template import content_text
from openclaw_rl.render.renderer import Renderer
from openclaw_rl.store.lineage.probe_answers import ProbeAnswer
from openclaw_rl.store.turn_states import MIN_LOOP_TOKENS, loop_period
from openclaw_rl.types import Exchange, Ids, JudgedTurn, Message

PROBE_TOKENS = 64
REPLY_TOKENS = 256
"""Limits of the replies to a probe and to a person's prompt."""
MAX_REPEATED_SHARE = 0.5
"""Share of the runs of three tokens of a reply that occur in it before, from which the reply repeats itself."""
SAME_REPLIES = 3
"""Equal replies to different prompts from which each one counts: two may be chance."""
Preference = Callable[[Sequence[Message], str, str], float | None]
"""Maps (messages, the head's reply, the candidate's reply) to a preference from -1 to 1; None: no judgement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplyPrompt:
    """A prompt that both versions answer: a probe, plain or as people are asked, or a person's turn."""

    name: str
    prompt_ids: list[int]  # [P]
    probe: Probe | None = None
    exchange: Exchange | None = None
    is_served: bool = False  # whether the probe stands in the prompt as people are asked

    def order(self, version: int) -> ReplyOrder:
        """Return the order of a version's reply. Probes are answered greedily, so that the answers can be repeated."""
        if self.exchange is None:
            return ReplyOrder(
                version=version,
                prompt_ids=self.prompt_ids,
                max_tokens=PROBE_TOKENS,
                temperature=0.0,
                seed=0,
            )
        sampling = self.exchange.request.sampling
        limit = min(sampling.max_tokens or REPLY_TOKENS, REPLY_TOKENS)
        return ReplyOrder(
            version=version,
            prompt_ids=self.prompt_ids,
            max_tokens=limit,
            temperature=min(sampling.temperature, 1.0),
            seed=self.exchange.seq,
        )


class ReplyEvidence:
    """The evidence from the replies of one examination."""

    def __init__(
        self,
        prompts: Sequence[ReplyPrompt],
        margin: float,
        error: float,
        lessons: Sequence[str] = (),
    ) -> None:
        """`lessons`: texts that no answer to a probe is to repeat."""
        self.waiting = list(prompts)
        self.echoes = LessonEchoes(lessons)
        self.answers: list[ProbeAnswer] = []
        self.correctness = Evidence("correctness", "answers to probes", margin, error)
        self.served = Evidence(
            "served", "answers to probes with the lessons of people in the prompt", margin, error
        )
        self.form = Evidence(
            "form", "the form of replies: empty, repeating itself, or without an end", margin, error
        )
        self.variety = Evidence(
            "variety", "replies: the same one to different prompts", margin, error
        )
        self.preference = Evidence(
            "preference", "replies to the person's own prompts, by the judge", margin, error
        )
        # Tokens of both replies to a person's prompt.
        self._given: list[tuple[ReplyPrompt, bytes, bytes]] = []
        # Of both replies to a person's prompt.
        self._tokens: list[tuple[int, int]] = []
        # Mean negative log-probability of both replies.
        self._surprise: list[tuple[float, float]] = []

    @property
    def evidence(self) -> list[Evidence]:
        """The kinds of evidence that have anything, or for which there are prompts."""
        kinds = [self.correctness, self.served, self.form, self.variety, self.preference]
        return [kind for kind in kinds if kind.differences]

    def add_replies(self, prompt: ReplyPrompt, head: GateReply, candidate: GateReply) -> None:
        """Add the form of two replies to a person's prompt, and whether others were the same."""
        self.form.add([float(has_faulty_form(head)) - float(has_faulty_form(candidate))])
        head_ids = head.token_ids.tobytes()
        candidate_ids = candidate.token_ids.tobytes()
        self._given.append((prompt, head_ids, candidate_ids))
        others = [
            recorded for recorded in self._given if recorded[0].prompt_ids != prompt.prompt_ids
        ]
        same_of_head = sum(recorded[1] == head_ids for recorded in others)
        same_of_candidate = sum(recorded[2] == candidate_ids for recorded in others)
        is_repeated_by_head = float(same_of_head >= SAME_REPLIES - 1)
        is_repeated_by_candidate = float(same_of_candidate >= SAME_REPLIES - 1)
        self.variety.add([is_repeated_by_head - is_repeated_by_candidate])
        self._tokens.append((len(head.token_ids), len(candidate.token_ids)))
        self._surprise.append((-float(np.mean(head.logprobs)), -float(np.mean(candidate.logprobs))))

    def metrics(self) -> dict[str, float]:
        """Return figures about the replies: lengths in tokens, and entropy per token as the replies sample it."""
        if not self._tokens:
            return {}
        lengths = np.mean(self._tokens, axis=0)
        surprise = np.mean(self._surprise, axis=0)
        return {
            "gate/length": float(lengths[1]),
            "gate/length/head": float(lengths[0]),
            "gate/entropy": float(surprise[1]),
            "gate/entropy/head": float(surprise[0]),
        }


def has_faulty_form(reply: GateReply) -> bool:
    """Return whether a reply is empty, repeats itself, or was cut at its limit."""
    content = reply.token_ids if reply.finish == "length" else reply.token_ids[:-1]
    return len(content) == 0 or reply.finish == "length" or _repeats_itself(content)


def _repeats_itself(ids: Ids) -> bool:
    """Return whether more than half of `ids` [n] are one loop, or more than half of their runs of three came before."""
    if len(ids) < MIN_LOOP_TOKENS:
        return False
    runs = np.lib.stride_tricks.sliding_window_view(ids, 3)
    repeated = 1 - len(np.unique(runs, axis=0)) / len(runs)
    return loop_period(ids) is not None or repeated > MAX_REPEATED_SHARE


class ReplyComparer:
    """Compares replies to a few prompts at a time."""

    def __init__(
        self,
        source: ReplySource,
        renderer: Renderer,
        probes: Sequence[Probe],
        preference: Preference | None = None,
    ) -> None:
        """`preference`: asks the judge which of two replies is better; None: there is no such judge."""
        self._source = source
        self._renderer = renderer
        self._preference = preference
        self._probes = probes

    def _ask(self, probe: Probe, form: ServedForm) -> ReplyPrompt | None:
        """Return a probe as it is asked in a form; None if the template rejects it."""
        try:
            messages = form.messages(probe.question, self._renderer.hint_format)
            rendered = self._renderer.render(messages, variables=form.template)
        except (ValueError, RequestError):
            return None
        name = probe.name if form.is_plain else f"{probe.name} (as asked, {form.name})"
        return ReplyPrompt(
            name=name,
            prompt_ids=rendered.prompt_ids.tolist(),
            probe=probe,
            is_served=not form.is_plain,
        )

    def choose_prompts(
        self, turns: Sequence[JudgedTurn], budget: int, forms: Sequence[ServedForm] = ()
    ) -> list[ReplyPrompt]:
        """Return `budget` prompts: those of the turns first, then the probes, each plain and as people are asked.

        `forms`: of people's prompts. Each probe is asked in one of them, in turn.
        """
        of_turns = [
            ReplyPrompt(
                name=f"turn {item.turn.id}",
                prompt_ids=item.exchange.request.prompt_ids.tolist(),
                exchange=item.exchange,
            )
            for item in turns
        ]
        probes: list[ReplyPrompt | None] = []
        for number, probe in enumerate(self._probes):
            probes.append(self._ask(probe, ServedForm()))
            if forms:
                probes.append(self._ask(probe, forms[number % len(forms)]))
        return [*of_turns, *(prompt for prompt in probes if prompt is not None)][:budget]

    def compare(
        self,
        prompts: Sequence[ReplyPrompt],
        evidence: ReplyEvidence,
        candidate: int,
        head: int,
        known: Mapping[str, str],
    ) -> None:
        """Add what the replies to these prompts show. Raises `RepliesDelayed` and `NoGateway`, with nothing added.

        `known`: the head's answers to probes that were generated before, by the name of the probe.
        """
        orders = []
        for prompt in prompts:
            if prompt.name not in known:
                orders.append(prompt.order(head))
            orders.append(prompt.order(candidate))
        replies = iter(self._source.generate(orders))
        for prompt in prompts:
            before = None if prompt.name in known else next(replies)
            after = next(replies)
            head_answer = known[prompt.name] if before is None else self._text(before)
            candidate_answer = self._text(after)
            verdict, reason = self._judge(prompt, evidence, head_answer, candidate_answer)
            if prompt.exchange is not None and before is not None:
                evidence.add_replies(prompt, before, after)
            if prompt.probe is not None:
                evidence.echoes.add(prompt.probe.question, head_answer, candidate_answer)
            turn = None if prompt.exchange is None else prompt.exchange.request.id
            answer = ProbeAnswer(
                version=candidate,
                probe=prompt.name,
                head=head,
                turn=turn,
                question=_question(prompt),
                head_answer=head_answer,
                candidate_answer=candidate_answer,
                verdict=verdict,
                reason=reason,
            )
            evidence.answers.append(answer)

    def _judge(
        self, prompt: ReplyPrompt, evidence: ReplyEvidence, head: str, candidate: str
    ) -> tuple[float, str]:
        """Return the difference between two answers, from -1 to 1, with its reason."""
        if prompt.probe is not None:
            head_is_right = prompt.probe.is_correct(head)
            candidate_is_right = prompt.probe.is_correct(candidate)
            difference = float(candidate_is_right) - float(head_is_right)
            kind = evidence.served if prompt.is_served else evidence.correctness
            kind.add([difference])
            labels = {True: "correct", False: "wrong"}
            return (
                difference,
                f"head {labels[head_is_right]}, candidate {labels[candidate_is_right]}",
            )
        messages = prompt.exchange.request.messages if prompt.exchange is not None else ()
        if self._preference is None or not messages:
            return 0.0, "not judged: the judge is no language model"
        preferred = self._preference(messages, head, candidate)
        if preferred is None:
            return 0.0, "not judged: the judge gave no usable answer"
        evidence.preference.add([preferred])
        return preferred, "judged in both orders"

    def _text(self, reply: GateReply) -> str:
        decoder = self._renderer.new_text_decoder(())
        decoder.push(
            reply.token_ids.tolist() if reply.finish == "length" else reply.token_ids[:-1].tolist()
        )
        decoder.finish()
        return str(decoder.parser.to_message().get("content") or "").strip()


def _question(prompt: ReplyPrompt) -> str:
    """Return the last message of a prompt, which may be long."""
    if prompt.probe is not None:
        return prompt.probe.question
    messages = prompt.exchange.request.messages if prompt.exchange is not None else ()
    return content_text(messages[-1].get("content")) if messages else ""
