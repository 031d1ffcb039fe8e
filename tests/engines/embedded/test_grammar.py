"""Forced formats on a random model: whatever it would like to say, the reply is a sentence of the grammar."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

from openclaw_rl.engines.embedded.grammar import GrammarCompiler, GrammarState
from openclaw_rl.engines.embedded.model import EmbeddedModel, resolve_model_path
from openclaw_rl.engines.embedded.scheduler import EmbeddedEngine
from openclaw_rl.engines.embedded.sequence import NewToken, SequenceFailed
from openclaw_rl.errors import GrammarError
from openclaw_rl.settings.load import STARTER, EngineConfig, ModelConfig
from openclaw_rl.types import Sampling

STOP, VOCAB = 2, 2080  # <|im_end|>; some ids more than the tokenizer has
PROMPT = np.arange(20, 40, dtype=np.int32)
TIGHT = {"x-guidance": {"whitespace_pattern": "[ ]{0,1}"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model with the starter's tokenizer."""
    out = tmp_path_factory.mktemp("random")
    torch.manual_seed(0)
    Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=1024,
            tie_word_embeddings=True,
        )
    ).save_pretrained(out)
    shutil.copy(Path(resolve_model_path(STARTER)) / "tokenizer.json", out)
    return out


@pytest.fixture(scope="module")
def core(folder: Path) -> EmbeddedEngine:
    return EmbeddedEngine(
        EmbeddedModel.load(ModelConfig(path=str(folder), device="cpu")),
        EngineConfig(prefill_chunk=64),
    )


@pytest.fixture(scope="module")
def grammars(folder: Path) -> GrammarCompiler:
    found = GrammarCompiler.for_model(str(folder), VOCAB)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def reply(
    core: EmbeddedEngine, grammar_state: GrammarState | None, **sampling: Any
) -> list[NewToken]:
    core.generate(
        "x",
        0,
        PROMPT,
        Sampling(**({"max_tokens": 900, "seed": 0} | sampling)),
        [STOP],
        grammar_state=grammar_state,
    )
    out: list[NewToken] = []
    while core.has_work:
        for item in core.step():
            assert isinstance(item, NewToken), item
            out.append(item)
    return out


def valid(value: Any, schema: dict[str, Any]) -> bool:
    """What JSON Schema says of the few keywords used here."""
    if "anyOf" in schema:
        return any(valid(value, s) for s in schema["anyOf"])
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        names, needed = schema["properties"], schema["required"]
        fits = isinstance(value, dict) and set(needed) <= value.keys() <= names.keys()
        return fits and all(valid(v, names[k]) for k, v in value.items())
    if kind == "array":
        fits = isinstance(value, list) and schema["minItems"] <= len(value) <= schema["maxItems"]
        return fits and all(valid(v, schema["items"]) for v in value)
    if kind == "string":
        return isinstance(value, str) and len(value) <= schema["maxLength"]
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    return {"boolean": type(value) is bool, "null": value is None}[kind]


_leaves = st.one_of(
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 9)),
    st.builds(
        lambda a, n: {"type": "integer", "minimum": a, "maximum": a + n},
        st.integers(-99, 99),
        st.integers(0, 99),
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}]),
    st.lists(st.one_of(st.text(max_size=5), st.integers(-9, 9)), min_size=1, max_size=3).map(
        lambda v: {"enum": v}
    ),
)


def _object(properties: dict[str, Any], needed: int) -> dict[str, Any]:
    required = list(properties)[:needed]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_schemas = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(
            lambda items, a, n: {"type": "array", "items": items, "minItems": a, "maxItems": a + n},
            inner,
            st.integers(0, 2),
            st.integers(0, 2),
        ),
        st.builds(
            _object, st.dictionaries(st.text(max_size=4), inner, max_size=3), st.integers(0, 3)
        ),
        st.lists(inner, min_size=1, max_size=2).map(lambda s: {"anyOf": s}),
    ),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(schema=_schemas, seed=st.integers(0, 99), greedy=st.booleans())
def test_the_reply_parses_and_validates(
    schema: dict[str, Any],
    seed: int,
    greedy: bool,
    core: EmbeddedEngine,
    grammars: GrammarCompiler,
    tokenizer: Tokenizer,
) -> None:
    grammar_state = grammars.initial_state("start: %json " + json.dumps(schema | TIGHT), [STOP])
    tokens = reply(core, grammar_state, seed=seed, temperature=0.0 if greedy else 1.0)
    text = tokenizer.decode([t.token for t in tokens])
    assert tokens[-1].finish == "stop", text
    assert valid(json.loads(text), schema), (schema, text)


def test_the_logprobs_are_those_of_the_free_distribution(
    core: EmbeddedEngine, grammars: GrammarCompiler
) -> None:
    schema = {"enum": ["a", "b", 17, None]}
    tokens = reply(
        core, grammars.initial_state("start: %json " + json.dumps(schema), [STOP]), temperature=0.7
    )
    core.score("y", 0, PROMPT, np.array([t.token for t in tokens], dtype=np.int32), 0.7)
    (scored,) = [item for _ in range(3) for item in core.step()]
    np.testing.assert_allclose([t.logprob for t in tokens], scored.logprobs, atol=1e-5)


def test_rows_without_a_grammar_draw_as_they_would_alone(
    core: EmbeddedEngine, grammars: GrammarCompiler
) -> None:
    alone = [t.token for t in reply(core, None, max_tokens=12)]
    grammar_state = grammars.initial_state('start: "no" | "yes"', [STOP])
    core.generate(
        "guided", 0, PROMPT, Sampling(max_tokens=12, seed=3), [STOP], grammar_state=grammar_state
    )
    core.generate("free", 0, PROMPT, Sampling(max_tokens=12, seed=0), [STOP])
    drawn: dict[str, list[int]] = {"guided": [], "free": []}
    while core.has_work:
        for item in core.step():
            assert isinstance(item, NewToken)
            drawn[item.seq.owner].append(item.token)
    assert drawn["free"] == alone
    assert drawn["guided"][-1] == STOP


def test_tokens_of_the_tokenizer_are_matched_as_tokens(
    core: EmbeddedEngine, grammars: GrammarCompiler, tokenizer: Tokenizer
) -> None:
    call, end = tokenizer.token_to_id("<tool_call>"), tokenizer.token_to_id("</tool_call>")
    tokens = [
        t.token
        for t in reply(core, grammars.initial_state(f'start: <[{call}]> "\\nx" <[{end}]>', [STOP]))
    ]
    assert (tokens[0], tokens[-2:]) == (call, [end, STOP])


def test_a_reply_that_is_cut_is_cut_by_its_length(
    core: EmbeddedEngine, grammars: GrammarCompiler
) -> None:
    schema = {"type": "string", "minLength": 400}
    tokens = reply(
        core, grammars.initial_state("start: %json " + json.dumps(schema), [STOP]), max_tokens=9
    )
    assert (len(tokens), tokens[-1].finish) == (9, "length")


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ('start: %json {"type": "object", "not": {"type": "string"}}', "Unimplemented keys"),
        ('start: %json {"type": "nonsense"}', "nonsense"),
        ("start: nowhere", "nowhere"),
        ("begin ][", "the format"),
        (
            "start: %json " + json.dumps({"type": "string", "minLength": 30, "maxLength": 10}),
            "the format",
        ),
        ("start: " + "A? " * 12_000 + "\nA: /a/", "Too many items .limit 30000"),
        ('start: %json {"enum": ["\\ud800"]}', "the format"),
        (
            'start: %json {"$ref": "#"}',
            "enforced: no text can match it, for example because a [$]ref refers only to itself$",
        ),
        (
            'start: %json {"type": "string", "pattern": "("}',
            r"JSON schema: regex parse error: \( error: unclosed group$",
        ),
        ('start: %json {"type": "string", "pattern": "[z-a]"}', "the start must be <= the end$"),
        ('start: %json {"type": "string", "pattern": "(?=a)b"}', "look-behind, is not supported$"),
    ],
)
def test_formats_that_cannot_be_enforced_are_refused(
    grammars: GrammarCompiler, grammar: str, words: str
) -> None:
    with pytest.raises(GrammarError, match=words) as refused:
        grammars.initial_state(grammar, [STOP])
    assert "\n" not in str(refused.value)


def test_a_reply_that_cannot_go_on_ends_with_its_reason(
    core: EmbeddedEngine, grammars: GrammarCompiler
) -> None:
    """No stop token at all: the sentence is over, and nothing may follow."""
    core.generate(
        "x",
        0,
        PROMPT,
        Sampling(max_tokens=9),
        (),
        grammar_state=grammars.initial_state('start: "a"', ()),
    )
    out = [item for _ in range(4) if core.has_work for item in core.step()]
    assert isinstance(out[-1], SequenceFailed)
    assert "no token of the vocabulary" in out[-1].reason
    assert not core.has_work


def test_a_grammar_that_fails_during_sampling_reports_the_reason(
    core: EmbeddedEngine, grammars: GrammarCompiler
) -> None:
    """Its regex is built as far as the reply goes, up to the limits; none ends before."""
    large = json.dumps({"type": "string", "pattern": "^(([a-z]{1,1000}){1,1000}){99,1000}$"})
    grammar_state = grammars.initial_state("start: %json " + large, [STOP])
    core.generate(
        "x", 0, PROMPT, Sampling(max_tokens=50, seed=0), [STOP], grammar_state=grammar_state
    )
    out = [item for _ in range(50) if core.has_work for item in core.step()]
    assert isinstance(out[-1], SequenceFailed)
    assert out[-1].reason.endswith(
        "required format (lexer error: too many expressions constructed)"
    )
    assert not core.has_work


def test_compiled_grammars_are_cached_and_do_not_share_their_state(
    core: EmbeddedEngine, grammars: GrammarCompiler
) -> None:
    one, two = (grammars.initial_state('start: "ab"', [STOP]) for _ in range(2))
    first, second = reply(core, one), reply(core, two)
    assert [t.token for t in first][-1] == [t.token for t in second][-1] == STOP


def test_a_model_without_a_tokenizer_has_no_grammars(model_folder: Path) -> None:
    assert GrammarCompiler.for_model(str(model_folder), 64) is None
