"""Test which model families work: serve and train a small random model of each family that transformers has.

    python benchmarks/families.py [--only qwen3 gemma2 ...] [--out docs/guides/models.md]

Trained: the trainer's log-probabilities of some turns equal those of the model's own forward pass. Served: the embedded
engine loads it and passes its self-test. Families that cannot be made small, or that need other input than text, are
skipped.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging as transformers_logging

PAGE = Path(__file__).parent.parent / "docs" / "guides" / "models.md"
TEMPLATES_HEADING = "\n## Chat templates\n"
# That one family may take.
SECONDS = 120
# Weights.
LARGEST = 2e7
# Of a log-probability.
CLOSE = 2e-3
COMMON = {
    **{
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    **{
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 256,
        "initializer_range": 0.3,
    },
    **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "rotary_dim": 8},
}
EXPERTS = {
    **{
        "num_experts": 4,
        "num_local_experts": 4,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
    },
    **{
        "moe_intermediate_size": 16,
        "topk_group": 1,
        "moe_num_experts": 4,
        "n_shared_experts": 1,
        "q_lora_rank": 16,
    },
    **{
        "first_k_dense_replace": 1,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    },
}
OLDER = {
    **{
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "n_ctx": 256,
        "d_model": 32,
        "num_layers": 2,
    },
    **{
        "num_heads": 4,
        "ffn_dim": 48,
        "n_layers": 2,
        "n_heads": 4,
        "word_embed_proj_dim": 32,
        "n_inner": 48,
    },
}
HEADLESS = {name: value for name, value in {**COMMON, **EXPERTS}.items() if name != "head_dim"}
PLAIN = {
    name: value
    for name, value in HEADLESS.items()
    if not name.startswith(("qk_", "kv_", "v_", "q_"))
}
TRIES = (
    {**COMMON, **EXPERTS, **OLDER},
    {**COMMON, **EXPERTS},
    HEADLESS,
    PLAIN,
    COMMON,
    {**COMMON, **OLDER},
)
# Which have their own layers only where they are asked for.
HYBRID = {"lfm2": ["conv", "full_attention"]}
TEXT = """\
# Supported models

Any causal language model of transformers with a tokenizer and a chat template works, from a folder or a hub. Qwen,
Llama, Mistral, Gemma, DeepSeek and gpt-oss have parsers for their tool calls and reasoning
([chat templates](../concepts/templates.md)). Replies of other models are returned as text.

`python benchmarks/families.py` builds a small random model of each family of transformers {version}, serves it with
the embedded engine and trains it. {tried} causal families could be built. For all trained families the trainer's
log-probabilities equal those of a plain forward pass. A small model may lack a kind of layer that a large model of the
same family has. If a model has sliding-window attention, the embedded engine serves conversations up to the length of
the window (`engine.max_context`). The documentation of vLLM and SGLang lists the families that they serve.

{lists}
"""
KINDS = {
    "all": "**Served by the embedded engine and trained** ({n}), with shared prefixes computed once:",
    "rows": "**Served by the embedded engine and trained turn by turn** ({n}), because their layers carry a state,\n"
    "transform attention scores, or have their own attention:",
    "part": "**Served, and trained with named layers** (`train.lora.targets`) **or with full weights** ({n}). These\n"
    "models have experts or routers, and the engine serves no adapter on such layers. Without the setting, the error\n"
    "lists the layers that it can name:",
    "elsewhere": "**Trained, and served by vLLM or SGLang only** ({n}):",
    "served": "**Served, but not trained** ({n}):",
    "none": "**Neither** ({n}):",
}

# ------------------------------------------------------------------------------------- one family


def make(family: str, folder: Path) -> str | None:
    """A small random model in `folder`; else why not."""
    why = ""
    for wished in TRIES:
        try:
            config = _small(family, wished)
            with torch.device("meta"):
                size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
            if size > LARGEST:
                why = why or f"{size / 1e6:.0f} million weights"
                continue
            torch.manual_seed(0)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
            with torch.no_grad():
                for parameter in (p for p in model.parameters() if p.ndim > 1):
                    parameter.normal_(0, 0.3 if parameter.numel() < 1e5 else 0.05)
            _check_causal(model.eval())
            model.save_pretrained(folder)
            AutoConfig.from_pretrained(folder)
        except Exception as error:  # noqa: BLE001  families fail to be small in many ways
            why = why or f"{type(error).__name__}: {error}"
            continue
        return None
    return why


@torch.no_grad()
def _check_causal(model: Any) -> None:
    """Raises what its forward pass raises, and `ValueError` for one that looks ahead."""
    ids = torch.arange(3, 15)[None]
    other = torch.cat([ids[:, :-1], ids[:, :1]], dim=1)
    gap = (model(input_ids=ids).logits - model(input_ids=other).logits)[:, :-1].abs().max().item()
    if not gap < CLOSE:
        raise ValueError("it looks ahead")


def _small(family: str, wished: dict[str, Any]) -> Any:
    """A configuration with what of `wished` it knows."""
    known = AutoConfig.for_model(family)
    text = known.get_text_config()
    given = {name: value for name, value in wished.items() if hasattr(text, name)}
    given |= {"layer_types": HYBRID[family]} if family in HYBRID else {}
    if text is known:
        return AutoConfig.for_model(family, **given)
    for name, value in given.items():
        setattr(text, name, value)
    # The last ones: hybrids begin with their states.
    if kinds := getattr(text, "layer_types", None):
        text.layer_types = list(kinds[-COMMON["num_hidden_layers"] :])
    return known


def served(path: str) -> str | None:
    """None; else why not."""
    from openclaw_rl.engines.embedded.model import EmbeddedModel
    from openclaw_rl.errors import OpenClawError
    from openclaw_rl.settings.load import ModelConfig

    try:
        EmbeddedModel.load(ModelConfig(path=path, device="cpu"))
    except OpenClawError as error:
        return str(error)
    return None


def trained(path: str, weights: str) -> str:
    """shared, apart: how turns are computed; else why it is not trained, or what is wrong."""
    from openclaw_rl.errors import OpenClawError
    from openclaw_rl.learner.forward.packing import TokenSequence
    from openclaw_rl.learner.trainer import LocalTrainer
    from openclaw_rl.methods.registry import make_method
    from openclaw_rl.settings.load import train_settings

    rate = {"optimizer.learning_rate": 1e-5}
    train = train_settings({"method": "binary", "finetune": weights, "lora": {"rank": 2}, **rate})
    try:
        trainer = LocalTrainer(path, make_method(train), train)
    except OpenClawError as error:
        return str(error)
    random = np.random.default_rng(0)
    trunk, more, words = (random.integers(3, 60, n).astype(np.int32) for n in (40, 17, 9))
    prompts = (trunk, np.concatenate([trunk, words, more]), np.concatenate([trunk[:25], more]))
    rows = [
        TokenSequence(prompt_ids=prompt, response_ids=words, temperature=1.0) for prompt in prompts
    ]
    own = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    gap = max(
        _gap(own, row, found) for row, found in zip(rows, trainer.logprobs(rows), strict=True)
    )
    if not gap <= CLOSE:
        return f"WRONG: its log-probabilities are off by {gap:.2g}"
    return "shared" if trainer._runner.uses_tree else "apart"


@torch.no_grad()
def _gap(own: Any, row: Any, found: torch.Tensor) -> float:
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.response_ids]).astype(np.int64))[
        None
    ]
    logp = torch.log_softmax(own(input_ids=ids[:, :-1], use_cache=False).logits[0].float(), -1)
    wanted = logp[len(row.prompt_ids) - 1 :].gather(-1, ids[0, len(row.prompt_ids) :, None])[:, 0]
    return float((wanted - found).abs().max())


def tried(family: str, folder: Path) -> dict[str, Any]:
    if why := make(family, folder):
        return {"made": why}
    path = str(folder)
    return {"served": served(path), "lora": trained(path, "lora"), "full": trained(path, "full")}


# ------------------------------------------------------------------------------------- all of them


def apart(family: str, place: Path) -> dict[str, Any]:
    """What `tried` says, of a process of its own."""
    folder = place / family
    told = place / f"{family}.json"
    if not (child := os.fork()):
        signal.alarm(SECONDS)
        try:
            found = tried(family, folder)
        except Exception as error:  # noqa: BLE001  what is no error of ours is a finding
            found = {"broke": f"{type(error).__name__}: {error}"}
        told.write_text(json.dumps(found), encoding="utf-8")
        os._exit(0)
    os.waitpid(child, 0)
    shutil.rmtree(folder, ignore_errors=True)
    return (
        dict(json.loads(told.read_text()))
        if told.exists()
        else {"broke": f"no end within {SECONDS} s"}
    )


def kind_of(found: dict[str, Any]) -> str:
    """One of `KINDS`."""
    ways = [found.get("lora"), found.get("full")]
    is_served = "served" in found and found["served"] is None
    works = [way in ("shared", "apart") for way in ways]
    if not is_served:
        return "elsewhere" if any(works) else "none"
    if not any(works):
        return "served"
    return "part" if not works[0] else "all" if ways[0] == "shared" else "rows"


def lists(found: dict[str, dict[str, Any]]) -> Iterator[str]:
    kinds = {family: kind_of(told) for family, told in found.items()}
    counts = Counter(kinds.values())
    for kind, words in KINDS.items():
        names = [family for family in found if kinds[family] == kind]
        if not names:
            continue
        yield words.format(n=counts[kind])
        if kind in ("none", "served"):
            yield "\n".join(f"- {name}: {_why(found[name])}" for name in names)
        else:
            yield textwrap.fill(", ".join(names) + ".", 120, break_on_hyphens=False)


def _why(told: dict[str, Any]) -> str:
    why = str(told.get("broke") or told.get("full"))
    return " ".join(re.sub(r"/\S+: ", "", why).split()).partition(". ")[0]


def templates_section(page: Path) -> str:
    """Return the part of the page that `benchmarks/template_matrix.py` writes, with its heading."""
    present = page.read_text(encoding="utf-8") if page.exists() else ""
    return "".join(present.partition(TEMPLATES_HEADING)[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--only", nargs="+", default=sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), metavar="FAMILY"
    )
    parser.add_argument("--out", type=Path, default=PAGE)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    torch.set_num_threads(1)
    found: dict[str, dict[str, Any]] = {}
    names: Sequence[str] = given.only
    with tempfile.TemporaryDirectory() as place:
        for number, family in enumerate(names):
            told = apart(family, Path(place))
            said = (
                f"not made: {told['made']}"
                if "made" in told
                else f"{kind_of(told)} {json.dumps(told)}"
            )
            print(f"{number + 1}/{len(names)} {family}: {said[:300]}", flush=True)
            if "made" not in told:
                found[family] = told
    if not found:
        sys.exit("none of them could be made small")
    text = TEXT.format(
        version=transformers.__version__, tried=len(found), lists="\n\n".join(lists(found))
    )
    given.out.write_text(text + templates_section(given.out), encoding="utf-8")


if __name__ == "__main__":
    main()
