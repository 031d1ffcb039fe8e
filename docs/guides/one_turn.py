"""Life of a turn: the algorithm of OpenClaw-RL in one file, without servers, store or processes.

    python docs/guides/one_turn.py            # learns a taste in half a minute on one core

A model answers. A person reacts with text. The reaction gives a score and a hint; both give a gradient; the next answer
is better. The real system (`src/openclaw_rl`) does the same with an API, a durable store, and hot swaps of the weights.
The order here is the order there:

    serve    sample a reply; keep its token ids and log-probabilities exactly as sampled
    judge    reaction -> a score (+1, -1 or none) and a hint ("Keep answers short.")
    credit   score -> one advantage for the reply; hint -> one advantage for each of its tokens
    train    one clipped step on both; the new weights answer the next question

Shape suffixes: B replies of a batch, P prompt tokens, R response tokens (right-padded), V vocabulary.
Symbols are those of docs/paper_index.md: mu sampled log-probabilities, pi the policy, T the teacher, o the policy
under the plain prompt, rho = pi/mu.
"""

from __future__ import annotations

import argparse
import random
import re
from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from openclaw_rl.evals.styles import TASTES, Taste, has_style
from openclaw_rl.evals.toy_world import Question, draw_question, is_correct

STARTER = Path(__file__).parents[2] / "src" / "openclaw_rl" / "assets" / "starter"

TEMPERATURE = 1.0
LEARNING_RATE = 2e-3
CLIP_LOW, CLIP_HIGH, DUAL_CLIP = (
    0.8,
    1.28,
    3.0,
)  # arXiv:2503.14476 (asymmetric clip), arXiv:1912.09729 (dual clip)
GAP_LOW, GAP_HIGH = (
    0.5,
    5.0,
)  # tokens with a ratio outside have no gradient: arXiv:2512.16144, eq. 1
OPD_CLIP = 1.0  # C
KL_COEF = 0.1
DECAY = 0.95  # of the baseline


# -------------------------------------------------------------------------------- 1. serve a turn


@dataclass
class Turn:
    """One question with its sampled reply."""

    question: Question
    prompt_ids: list[int]
    response_ids: list[int]  # [R] with the end token
    logprobs: list[float]  # [R] mu, at TEMPERATURE
    text: str
    score: int | None = None
    hint: str | None = None


class Policy:
    """The base model with a low-rank adapter. Adapter off: the base. Adapter on: the trained policy."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        self.model = get_peft_model(base, lora).eval()
        self.end = self.tokenizer.eos_token_id
        self.optimizer = torch.optim.AdamW(
            [p for p in self.model.parameters() if p.requires_grad],
            lr=LEARNING_RATE,
            betas=(0.9, 0.95),
            weight_decay=0,
        )

    def prompt(self, question: str, hint: str | None = None) -> list[int]:
        """Return the prompt's token ids. A hint follows the person's text, as in the real system with the starter."""
        content = question if hint is None else f"{question}\n\n[Hint: {hint}]"
        text = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
        )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    @torch.no_grad()
    def answer(self, question: Question, max_tokens: int = 64) -> Turn:
        """Sample a reply token by token. Keep the sampled ids and log-probabilities; the text is never re-tokenised."""
        prompt_ids = self.prompt(question.text)
        response_ids: list[int] = []
        logprobs: list[float] = []
        while len(response_ids) < max_tokens and (not response_ids or response_ids[-1] != self.end):
            # The whole text for each token. An engine caches keys and values here; the texts of this page are short.
            ids = torch.tensor([prompt_ids + response_ids])
            out = self.model(input_ids=ids, logits_to_keep=1, use_cache=False)
            logprobs_V = torch.log_softmax(out.logits[0, -1].float() / TEMPERATURE, dim=-1)
            token = int(torch.multinomial(logprobs_V.exp(), 1))
            response_ids.append(token)
            logprobs.append(float(logprobs_V[token]))
        text = self.tokenizer.decode(response_ids, skip_special_tokens=True)
        return Turn(question, prompt_ids, response_ids, logprobs, text)

    def score(self, prompts: list[list[int]], turns: list[Turn]) -> torch.Tensor:
        """Return [B, R] log-probabilities of the turns' responses after the given prompts (0 where padded)."""
        rows = [p + t.response_ids for p, t in zip(prompts, turns, strict=True)]
        width, longest = max(map(len, rows)), max(len(t.response_ids) for t in turns)
        # Left-padded: every response ends in the last column, so logits are needed for the last columns only.
        ids = torch.tensor([[self.end] * (width - len(r)) + r for r in rows])
        mask = torch.tensor([[0] * (width - len(r)) + [1] * len(r) for r in rows])
        places = (mask.cumsum(-1) - 1).clamp(min=0)
        out = self.model(
            input_ids=ids, attention_mask=mask, position_ids=places, logits_to_keep=longest + 1
        )
        logprobs_BRV = torch.log_softmax(out.logits[:, :-1].float() / TEMPERATURE, dim=-1)
        tail_BR = logprobs_BRV.gather(-1, ids[:, -longest:, None]).squeeze(-1)
        return torch.stack(
            [_left_align(row, len(t.response_ids)) for row, t in zip(tail_BR, turns, strict=True)]
        )


def _left_align(row_R: torch.Tensor, length: int) -> torch.Tensor:
    return torch.cat([row_R[len(row_R) - length :], row_R.new_zeros(len(row_R) - length)])


# ----------------------------------------------------------------------- 2. the person, the judge


def react(taste: Taste, turn: Turn, rng: random.Random) -> str:
    """Return the reaction of a person with a taste, as text. A tenth of them are wrong on purpose."""
    pleased = has_style(taste, turn.text) and is_correct(turn.question, turn.text)
    if rng.random() < 0.1:
        pleased = not pleased
    wish = {
        "short": "shorter",
        "long": "more detail",
        "formal": "more formal",
        "casual": "more casual",
    }
    wanted = wish.get(taste, "use bullet points")
    return rng.choice(["Perfect, thanks.", "Great!"]) if pleased else f"No, {wanted}, please."


RULES: tuple[tuple[str, int, str | None], ...] = (
    (r"\b(perfect|thanks|great)\b", +1, None),
    (r"\bshorter\b", -1, "Keep answers short."),
    (r"\bmore detail\b", -1, "Give long, detailed answers."),
    (r"\bmore formal\b", -1, "Use a formal tone."),
    (r"\bmore casual\b", -1, "Use a casual tone."),
    (r"\bbullet points\b", -1, "Answer in bullet points."),
)


def judge(reaction: str) -> tuple[int | None, str | None]:
    """Return score and hint of a reaction. If rules disagree or none matches, there is no score."""
    matching = [
        (score, hint)
        for pattern, score, hint in RULES
        if re.search(pattern, reaction, re.IGNORECASE)
    ]
    scores = {score for score, _ in matching}
    hints = [hint for _, hint in matching if hint]
    return (scores.pop() if len(scores) == 1 else None), (hints[0] if hints else None)


# -------------------------------------------------------------------------------------- 3. credit


@dataclass
class Memory:
    """State of credit between batches: read before a batch, updated after it."""

    baseline: float = 0.0
    tokens: float = field(default=0.0)  # moving average of reply lengths, for the denominators

    def after(self, turns: list[Turn]) -> None:
        for turn in turns:
            if turn.score is not None:
                self.baseline = DECAY * self.baseline + (1 - DECAY) * turn.score


def binary_advantages(turns: list[Turn], memory: Memory) -> torch.Tensor:
    """Return [B] A = r - b. No division by a standard deviation: it is 0 if all scores of a small batch are equal."""
    return torch.tensor([0.0 if t.score is None else t.score - memory.baseline for t in turns])


def opd_advantages(teacher_BR: torch.Tensor, own_BR: torch.Tensor) -> torch.Tensor:
    """Return [B, R] A_t = clip(T_t - o_t, -C, C): positive where the hinted, frozen base prefers a token to the policy.

    The base is frozen because a teacher made of the live weights diverges together with its student.
    """
    return (teacher_BR - own_BR).clamp(-OPD_CLIP, OPD_CLIP)


# ----------------------------------------------------------------------------------- 4. one step


def surrogate(
    rho_BR: torch.Tensor, advantages_BR: torch.Tensor, mask_BR: torch.Tensor, tokens: float
) -> torch.Tensor:
    """Return the clipped surrogate loss. `tokens`: replies in this term times the moving average of their length."""
    plain = rho_BR * advantages_BR
    clipped = rho_BR.clamp(CLIP_LOW, CLIP_HIGH) * advantages_BR
    gain = torch.minimum(plain, clipped)
    gain = torch.where(advantages_BR < 0, torch.maximum(gain, DUAL_CLIP * advantages_BR), gain)
    trusted = ((rho_BR.detach() > GAP_LOW) & (rho_BR.detach() < GAP_HIGH)).float()
    return -(gain * mask_BR * trusted).sum() / max(tokens, 1.0)


def step(policy: Policy, turns: list[Turn], memory: Memory) -> dict[str, float]:
    """Take one optimizer step on both terms, each with its own mask and denominator, and a KL penalty to the base."""
    plain_prompts = [t.prompt_ids for t in turns]
    hinted_prompts = [policy.prompt(t.question.text, t.hint) for t in turns]
    with torch.no_grad(), policy.model.disable_adapter():
        teacher_BR = policy.score(hinted_prompts, turns)
        base_BR = policy.score(plain_prompts, turns)
    pi_BR = policy.score(plain_prompts, turns)

    longest = pi_BR.shape[1]
    mu_BR = torch.tensor([t.logprobs + [0.0] * (longest - len(t.logprobs)) for t in turns])
    mask_BR = torch.tensor(
        [[1.0] * len(t.logprobs) + [0.0] * (longest - len(t.logprobs)) for t in turns]
    )
    rho_BR = (pi_BR - mu_BR).exp()
    memory.tokens = memory.tokens or float(mask_BR.sum(1).mean())

    scored = torch.tensor([float(t.score is not None) for t in turns])
    hinted = torch.tensor([float(t.hint is not None) for t in turns])
    binary_BR = binary_advantages(turns, memory)[:, None].expand_as(pi_BR)
    binary = surrogate(
        rho_BR, binary_BR, mask_BR * scored[:, None], float(scored.sum()) * memory.tokens
    )
    opd_BR = opd_advantages(teacher_BR, pi_BR.detach())
    opd = surrogate(rho_BR, opd_BR, mask_BR * hinted[:, None], float(hinted.sum()) * memory.tokens)
    # k2 with the ratio detached has the gradient of the reverse KL; k1 does not (arXiv:2510.01555).
    kl = (rho_BR.detach() * (pi_BR - base_BR).square() / 2 * mask_BR).sum() / (
        len(turns) * memory.tokens
    )

    policy.optimizer.zero_grad()
    (binary + opd + KL_COEF * kl).backward()
    norm = torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
    policy.optimizer.step()
    memory.after(turns)
    memory.tokens = DECAY * memory.tokens + (1 - DECAY) * float(mask_BR.sum(1).mean())
    return {"binary": binary.item(), "opd": opd.item(), "kl": kl.item(), "norm": norm.item()}


# ------------------------------------------------------------------------------- 5. the whole loop


def learn(taste: Taste, *, versions: int, batch: int, seed: int) -> list[float]:
    """Talk, judge, train, swap. Return the share of replies to the person's taste, per version."""
    torch.manual_seed(seed)
    rng = random.Random(seed)
    policy, memory, shares = Policy(STARTER), Memory(), []
    for version in range(versions):
        turns = [policy.answer(draw_question("asked", rng)) for _ in range(batch)]
        reactions = [react(taste, turn, rng) for turn in turns]
        for turn, words in zip(turns, reactions, strict=True):
            turn.score, turn.hint = judge(words)
        shares.append(sum(has_style(taste, t.text) for t in turns) / batch)
        print(f"version {version:2}  {taste} {shares[-1]:4.0%}   {turns[0].question.text}")  # noqa: T201
        print(f"            {turns[0].text!r}\n            {reactions[0]!r}")  # noqa: T201
        step(policy, turns, memory)
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--taste", choices=TASTES, default="short")
    parser.add_argument("--versions", type=int, default=16)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    learn(given.taste, versions=given.versions, batch=given.batch, seed=given.seed)


if __name__ == "__main__":
    main()
