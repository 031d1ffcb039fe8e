"""Forward passes that return log-probabilities of given response tokens.

Prompt positions skip the LM head, and shared prefixes are computed once. With long prompts and short replies, which are
typical for agents, these are the two largest savings.

Shapes: B rows, L padded length, T tokens of a tree, K response tokens of all rows, R of one row, H hidden size.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from openclaw_rl.common.progress import WorkKind, record_progress
from openclaw_rl.learner.distributed.world import World, split
from openclaw_rl.learner.forward import lm_head, prefix_tree, tree_attention, trial_pass
from openclaw_rl.learner.forward.activation_checkpointing import LayerCheckpointing
from openclaw_rl.learner.forward.causal_attention import relative_error
from openclaw_rl.learner.forward.flex_attention import TreeMasks, padded_length
from openclaw_rl.learner.forward.logit_transform import find_logit_transform
from openclaw_rl.learner.forward.packing import TokenSequence, micro_batches, pack_padded
from openclaw_rl.learner.forward.pass_speed import PassSpeed
from openclaw_rl.learner.model.compile import compile_parts, interpret_parts

_T = TypeVar("_T")
log = logging.getLogger(__name__)
# Of log-probabilities; half precision: next line.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 1e-3}
_LOW_TOLERANCE = 0.3
# Of attention outputs and gradients, relative norm.
_STATE_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3}
_LOW_STATE_TOLERANCE = 0.03
# Of hidden states, relative norm.
_HIDDEN_TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4}
# Exceeded by a leak between branches, even if log-probabilities hardly differ.
_LOW_HIDDEN_TOLERANCE = 0.2
# Of gradients through all layers; compiled layers round less often, which adds up.
_LOW_LAYER_TOLERANCE = 0.2
# Tokens of the pass that measures activation bytes.
_MEASURED_TOKENS = 8
# Number of smallest and of largest tensors whose gradients a trial compares: in a new adapter, only one matrix of each
# pair has a gradient.
_TRIAL_WEIGHTS = 8


class ForwardRunner:
    """Runs forward passes of one model over rows, as prefix trees if its layers allow it, else as padded rows.

    `uses_tree` is the choice; models with recurrent layers cannot branch.
    """

    def __init__(
        self,
        model: Any,
        *,
        micro_tokens: int,
        parts: int = 1,
        flex: bool | None = None,
        world: World | None = None,
        compiled: bool = False,
        checkpointing: bool | None = False,
    ) -> None:
        """`model`: a causal language model of transformers, with or without PEFT layers.

        `parts`: minimum number of passes, if there are as many rows; `flex`: try FlexAttention (None: on a GPU);
        `world`: ranks over which passes are distributed; `compiled`: try compiled layers; `checkpointing`: see
        `LayerCheckpointing`.
        """
        self._model = model
        self.budget = micro_tokens
        self._min_passes = parts
        self._world = world or World()
        self._logit_transform = find_logit_transform(model)
        self._own_attention = model.config._attn_implementation
        self._max_shared_length = trial_pass.max_shared_length(model.config.get_text_config())
        self._dynamic_ropes = [
            m for m in model.modules() if getattr(m, "rope_type", None) == "dynamic"
        ]
        # Largest number of rows in a pass since the budget was halved.
        self._max_rows = 1
        self.speed = PassSpeed(is_measured=model.device.type == "cpu")
        self._checkpointing = LayerCheckpointing(model, checkpointing)
        self.uses_flex = self._world.all_true(model.device.type == "cuda" if flex is None else flex)
        self.uses_tree = self._try_tree()
        self.is_compiled = False
        if compiled:
            self.is_compiled = self._try_compiled()
        vocabulary = model.config.get_text_config().vocab_size
        self._checkpointing.measure_layer_bytes(
            self.hidden_states, padded_length(1) if self.uses_flex else _MEASURED_TOKENS, vocabulary
        )
        self._measure_speed()

    @torch.no_grad()
    def _measure_speed(self) -> None:
        """Measure a short pass, by which the size of the first long one is chosen."""
        if not self.speed.is_measured:
            return
        rows = trial_pass.trial_rows(self._model.config.get_text_config())
        if self.is_compiled:
            # Compiles the layers for passes without gradients, which is not to be measured.
            self.hidden_states(rows)
        with self.speed.measure_pass(WorkKind.SCORE, self.pass_tokens(rows)):
            self.hidden_states(rows)

    def _try_compiled(self) -> bool:
        """Compile the layers and compare their results with those before; log the reason if they are not usable."""
        plain = self._trial_gradients()
        try:
            compile_parts(self._model)
            gap = max(
                relative_error(a, b) for a, b in zip(self._trial_gradients(), plain, strict=True)
            )
            bound = _STATE_TOLERANCE.get(self._model.dtype, _LOW_LAYER_TOLERANCE)
            reason = (
                None if gap <= bound else f"log-probabilities and gradients are off by {gap:.3g}"
            )
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  models and compilers raise errors of many types
            reason = f"{type(error).__name__}: {error}"
        if reason is None:
            return True
        self.disable_compile(reason)
        return False

    def disable_compile(
        self, reason: str = "they cannot be recomputed for the backward pass"
    ) -> bool:
        """Stop using compiled layers. Return whether they were in use."""
        was = self.is_compiled
        self.is_compiled = False
        interpret_parts(self._model)
        name = type(self._model).__name__
        log.warning(
            "%s: its layers cannot be compiled and run uncompiled, which is slower (%s)",
            name,
            reason,
        )
        return was

    @torch.enable_grad()
    def _trial_gradients(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (log-probabilities of short rows, gradients of their sum for some of the trained weights)."""
        logp_K, _ = self.forward(trial_pass.trial_rows(self._model.config.get_text_config()))
        trained = sorted((p for p in self._model.parameters() if p.requires_grad), key=torch.numel)
        compared = [*trained[:_TRIAL_WEIGHTS], *trained[_TRIAL_WEIGHTS:][-_TRIAL_WEIGHTS:]]
        gradients = torch.autograd.grad(logp_K.sum(), compared, allow_unused=True)
        return logp_K.detach(), torch.cat([g.flatten() for g in gradients if g is not None])

    def _try_tree(self) -> bool:
        """Compare a tree with padded rows. On failure, log it and try without FlexAttention, then without trees.

        All ranks make the same choice, because sharded ranks must run the same passes.
        """
        text = self._model.config.get_text_config()
        if getattr(text, "attention_chunk_size", None):
            return self._use_padded("its layers use chunked attention")
        rows = trial_pass.trial_rows(text)
        with torch.no_grad():
            padded = [self._run_padded([row]) for row in rows]
        reason = self._reason_on_any_rank(self._tree_failure_reason(rows, padded))
        if reason and self.uses_flex:
            log.warning(
                "%s: FlexAttention does not work here, attention runs segment by segment, which is slower (%s)",
                type(self._model).__name__,
                reason,
            )
            self.uses_flex = False
            reason = self._reason_on_any_rank(self._tree_failure_reason(rows, padded))
        return self._use_padded(reason) if reason else True

    def _reason_on_any_rank(self, reason: str | None) -> str | None:
        """Return a reason to use padded passes: of this rank, else of another rank; None if no rank has one."""
        return (
            None
            if self._world.all_true(reason is None)
            else reason or "it does not work on another rank"
        )

    @torch.no_grad()
    def _tree_failure_reason(
        self, rows: Sequence[TokenSequence], padded: Sequence[lm_head.HiddenStates]
    ) -> str | None:
        """Return why trees do not work with the current `uses_flex`, or None if they work."""
        try:
            self._model.set_attn_implementation(tree_attention.ATTENTION_NAME)
            tree = self._build_tree(rows)
            masks = self._tree_masks(tree)
            whole = self._run_tree(rows, tree, masks)
            # Uses another kernel.
            alone = self._tree_hidden_states(rows[:1])
            gap = max(
                trial_pass.logprob_gap(whole, padded), trial_pass.logprob_gap(alone, padded[:1])
            )
            if not gap <= _TOLERANCE.get(self._model.dtype, _LOW_TOLERANCE):
                return f"log-probabilities are off by {gap:.3g}"
            gap = relative_error(whole.hidden_KH, torch.cat([row.hidden_KH for row in padded]))
            if not gap <= _HIDDEN_TOLERANCE.get(self._model.dtype, _LOW_HIDDEN_TOLERANCE):
                return f"states are off by {gap:.3g}"
            for call in masks.shapes if masks else ():
                gap = tree_attention.flex_error(call, self._model.device)
                if not gap <= _STATE_TOLERANCE.get(call.dtype, _LOW_STATE_TOLERANCE):
                    return f"{call}: states and gradients are off by {gap:.3g}"
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # noqa: BLE001  models and compilers raise errors of many types
            return f"{type(error).__name__}: {error}"
        return None

    def _use_padded(self, reason: str) -> bool:
        self._model.set_attn_implementation(self._own_attention)
        log.warning(
            "%s: rows are trained one by one, and shared prompts are computed again for each row (%s)",
            type(self._model).__name__,
            reason,
        )
        return False

    def group_rows(self, rows: Sequence[TokenSequence]) -> list[list[int]]:
        """Return the row numbers of each forward pass, within the token budget (see `prefix_tree.group_rows`)."""
        parts = min(self._min_passes, len(rows))
        cuts = [len(rows) * part // parts for part in range(parts + 1)] if rows else []
        budget = self._fitting_budget()
        out = [
            group
            for a, b in pairwise(cuts)
            for group in self._groups_within_budget(rows, range(a, b), budget)
        ]
        out = split(out, [row.input_length for row in rows], self._world.size)
        self._max_rows = max([self._max_rows, *map(len, out)])
        return out

    def _fitting_budget(self) -> int:
        """Return the tokens of a pass: the budget, halved until such a pass is fast enough on all ranks.

        Halves of the same budget keep the passes, and with them the rounding of a step, equal while the speed changes
        little.
        """
        budget = self.budget
        while not self._world.all_true(self.speed.fits(budget)):
            budget //= 2
        return budget

    @property
    def recomputed_layers(self) -> int:
        """Number of layers that the last pass with gradients recomputes."""
        return self._checkpointing.recomputed_layers

    @property
    def may_compile(self) -> bool:
        """Whether a pass of a new size compiles first."""
        return self.is_compiled or self.uses_flex

    @property
    def memory_limits(self) -> tuple[int, float]:
        """Limits that `reduce_memory` changes: (tokens per pass, tokens × layers that keep activations)."""
        return self.budget, self._checkpointing.token_layer_limit

    @memory_limits.setter
    def memory_limits(self, size: tuple[int, float]) -> None:
        self.budget, self._checkpointing.token_layer_limit = size

    def reduce_memory(self) -> str | None:
        """On all ranks: recompute more layers, or if all are recomputed, halve the tokens per pass.

        Returns None without a change if all passes since the last call had one row and kept no activations.
        """
        if not self._world.all_true(not self._checkpointing.has_kept_activations):
            self._checkpointing.halve_kept()
            return "more layers recomputed in the backward pass"
        if self._max_rows < 2 or self.budget < 2:
            return None
        self.budget = self.budget // 2
        self._max_rows = 1
        return f"passes of {self.budget} tokens"

    def _groups_within_budget(
        self, rows: Sequence[TokenSequence], numbers: Sequence[int], budget: int
    ) -> list[list[int]]:
        alone: list[list[int]] = []
        shareable: list[int] = []
        for number in numbers:
            if rows[number].input_length > self._max_shared_length:
                alone.append([number])
            else:
                shareable.append(number)
        if self.uses_tree:
            groups = prefix_tree.group_rows([rows[i] for i in shareable], budget)
        else:
            groups = micro_batches([rows[i].input_length for i in shareable], budget)
        return alone + [[shareable[j] for j in group] for group in groups]

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world.size

    def map_groups(
        self,
        rows: Sequence[TokenSequence],
        work: Callable[[list[int], float], _T],
        kind: type[_T],
        pass_kind: WorkKind,
        partners: Sequence[TokenSequence] | None = None,
    ) -> list[_T]:
        """Return `work(group, weight)` for each group of `rows`; see `World.map_over_ranks`.

        `pass_kind`: what a group's work is; each is reported and its speed is measured. `partners`: a row for each of
        `rows` that its pass computes, too.
        """
        groups = self.group_rows(rows)
        costs = [sum(rows[i].input_length for i in group) for group in groups]
        beside = partners or ()
        sizes = [
            self.pass_tokens([*(rows[i] for i in group), *(beside[i] for i in group if beside)])
            for group in groups
        ]
        total = math.ceil(len(groups) / self._world.size)
        later = sum(sizes) / self._world.size
        number = 0

        def run_group(n: int, weight: float) -> _T:
            nonlocal number, later
            number += 1
            later = max(0.0, later - sizes[n])
            with self.speed.measure_pass(
                pass_kind,
                sizes[n],
                number=number,
                total=max(number, total),
                later_tokens=int(later),
            ):
                return work(groups[n], weight)

        return self._world.map_over_ranks(costs, run_group, kind)

    def pass_tokens(self, rows: Sequence[TokenSequence]) -> int:
        """Return the tokens that one pass over these rows computes."""
        if self.uses_tree:
            return prefix_tree.count_tokens(rows)
        return len(rows) * max(row.input_length for row in rows)

    def forward(
        self, rows: Sequence[TokenSequence], *, floats: int | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (logp_K, entropy_K in nats) of one pass, at the temperature of each row, in row order."""
        picked = self.hidden_states(rows).token_logprobs(floats=floats)
        return picked.logp, picked.entropy_K

    def hidden_states(self, rows: Sequence[TokenSequence]) -> lm_head.HiddenStates:
        """Run one pass of all layers below the head; response tokens are in row order."""
        record_progress()
        for rope in self._dynamic_ropes:
            # Else it keeps the frequencies of the longest row so far.
            rope.max_seq_len_cached = 0
        return self._tree_hidden_states(rows) if self.uses_tree else self._run_padded(rows)

    def _tree_hidden_states(self, rows: Sequence[TokenSequence]) -> lm_head.HiddenStates:
        tree = self._build_tree(rows)
        return self._run_tree(rows, tree, self._tree_masks(tree))

    def _build_tree(self, rows: Sequence[TokenSequence]) -> prefix_tree.PrefixTree:
        tree = prefix_tree.build_tree(rows, self._model.device)
        return prefix_tree.pad_tree(tree, padded_length(tree.tokens)) if self.uses_flex else tree

    def _tree_masks(self, tree: prefix_tree.PrefixTree) -> TreeMasks | None:
        return TreeMasks(tree) if self.uses_flex else None

    def _run_tree(
        self, rows: Sequence[TokenSequence], tree: prefix_tree.PrefixTree, masks: TreeMasks | None
    ) -> lm_head.HiddenStates:
        self._checkpointing.plan_pass(tree.tokens)
        out = self._model.get_decoder()(
            input_ids=tree.ids_T[None],
            position_ids=tree.depth_T[None],
            use_cache=False,
            plan=tree_attention.AttentionPlan(tree, masks),
        )
        return self._response_states(rows, out.last_hidden_state[0][tree.kept_K])

    def _run_padded(self, rows: Sequence[TokenSequence]) -> lm_head.HiddenStates:
        ids_BL, kept_K = pack_padded(rows, self._model.device)
        self._checkpointing.plan_pass(ids_BL.numel())
        hidden_BLH = self._model.get_decoder()(input_ids=ids_BL, use_cache=False).last_hidden_state
        return self._response_states(rows, hidden_BLH.flatten(0, 1)[kept_K])

    def _response_states(
        self, rows: Sequence[TokenSequence], hidden_KH: torch.Tensor
    ) -> lm_head.HiddenStates:
        lengths = [len(row.response_ids) for row in rows]
        temperatures = torch.tensor([row.temperature for row in rows], dtype=torch.float64)
        targets_K = torch.from_numpy(np.concatenate([row.response_ids for row in rows]))
        return lm_head.HiddenStates(
            head=self._model.get_output_embeddings(),
            hidden_KH=hidden_KH,
            targets_K=targets_K.to(hidden_KH.device, torch.long),
            temperature_K=temperatures.repeat_interleave(torch.tensor(lengths)).to(
                hidden_KH.device, torch.promote_types(hidden_KH.dtype, torch.float32)
            ),
            lengths=tuple(lengths),
            logit_transform=self._logit_transform,
        )

    @torch.no_grad()
    def logprobs(
        self,
        rows: Sequence[TokenSequence],
        *,
        ids: Sequence[torch.Tensor] | None = None,
        top: int = 0,
        done: Callable[[int], None] = lambda _: None,
    ) -> list[lm_head.TokenLogprobs]:
        """Return the result of `HiddenStates.token_logprobs` for each row, on the CPU and without gradients.

        `ids`: [R, N] further tokens to score for each row, with the same N for all rows. `done` is called after each
        pass with the number of rows that this rank has scored.
        """
        so_far = 0

        def score_group(group: list[int], _: float) -> dict[int, lm_head.TokenLogprobs]:
            nonlocal so_far
            states = self.hidden_states([rows[i] for i in group])
            record_progress()
            ids_KN = (
                None
                if ids is None
                else torch.cat([ids[i] for i in group]).to(states.hidden_KH.device)
            )
            scores = states.token_logprobs(ids_KN=ids_KN, top=top).split_rows(states.lengths)
            so_far += len(group)
            done(so_far)
            return dict(zip(group, scores, strict=True))

        groups = self.map_groups(
            rows, score_group, dict[int, lm_head.TokenLogprobs], WorkKind.SCORE
        )
        out = {i: scores for group in groups for i, scores in group.items()}
        return [out[i] for i in range(len(rows))]

    @torch.no_grad()
    def guided_scores(
        self,
        hinted: Sequence[TokenSequence],
        plain: Sequence[TokenSequence],
        guidance: Sequence[float],
        *,
        ids: Sequence[torch.Tensor] | None = None,
        top: int = 0,
    ) -> list[tuple[lm_head.TokenLogprobs, lm_head.GuidedScores]]:
        """Return (the plain row's scores, those of the guided teacher) for each pair of rows with the same response.

        Both rows of a pair are in one pass. `guidance`: of each pair; `ids`, `top`: as of `logprobs`.
        """
        kind = dict[int, tuple[lm_head.TokenLogprobs, lm_head.GuidedScores]]

        def score_group(
            group: list[int], _: float
        ) -> dict[int, tuple[lm_head.TokenLogprobs, lm_head.GuidedScores]]:
            size = len(group)
            states = self.hidden_states([*(hinted[i] for i in group), *(plain[i] for i in group)])
            record_progress()
            hinted_states = states.select_rows(range(size))
            plain_states = states.select_rows(range(size, 2 * size))
            device = states.hidden_KH.device
            lengths = plain_states.lengths
            ids_KN = None if ids is None else torch.cat([ids[i] for i in group]).to(device)
            guidance_K = (
                torch.tensor([guidance[i] for i in group])
                .repeat_interleave(torch.tensor(lengths))
                .to(device)
            )
            guided = lm_head.guided_scores(
                hinted_states, plain_states, guidance_K, ids_KN=ids_KN, top=top
            )
            unguided = plain_states.token_logprobs(ids_KN=ids_KN, top=top)
            pairs = zip(unguided.split_rows(lengths), guided.split_rows(lengths), strict=True)
            return dict(zip(group, pairs, strict=True))

        groups = self.map_groups(hinted, score_group, kind, WorkKind.SCORE, partners=plain)
        out = {i: pair for group in groups for i, pair in group.items()}
        return [out[i] for i in range(len(hinted))]
