"""Render chat templates in a jinja2 sandbox, with the same filters, globals and results as transformers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from types import MappingProxyType
from typing import Any

import jinja2
import msgspec
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from openclaw_rl.errors import ModelError, RequestError, TemplateRefusal
from openclaw_rl.render.control_tokens import remove_marks
from openclaw_rl.types import Message

# Templates support only four roles.
_ROLE_ALIASES = {"developer": "system", "function": "tool"}
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning")
NO_VARIABLES: Mapping[str, Any] = MappingProxyType({})
_RESERVED_NAMES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "tokenize",
    }
    | {
        "raise_exception",
        "strftime_now",
        "namespace",
        "range",
        "dict",
        "lipsum",
        "cycler",
        "joiner",
        "loop",
        "self",
    }
)
"""Variable names that a client may not set: arguments of `render`, and functions and globals of templates."""


class SerializedTool(dict[str, Any]):
    """Tool definition with its JSON text precomputed, because an agent sends the same tools with every request."""

    __slots__ = ("json",)

    def __init__(self, tool: Mapping[str, Any]) -> None:
        super().__init__(tool)
        self.json = json.dumps(tool, ensure_ascii=False)


def serialize_tools(tools: Sequence[Mapping[str, Any]]) -> list[SerializedTool]:
    """Return the tools in the form that `ChatTemplate.render` expects."""
    return [SerializedTool(t) for t in tools]


class _GenerationTag(Extension):
    """Jinja tag `{% generation %}`, which marks assistant tokens for training: renders its body unchanged."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares this type

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The template filter `tojson`; unlike jinja2's own, it does not escape HTML."""
    is_default_form = (ensure_ascii, indent, separators, sort_keys) == (False, None, None, False)
    if type(value) is SerializedTool and is_default_form:
        return value.json
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_to_list,
    )


def _to_list(value: Any) -> list[Any]:
    """Return the items of a generator, as `map` and `selectattr` make them. Raises `TypeError` for anything else."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


class _SafeNamespace(Namespace):
    """`namespace()` that rejects names with a leading underscore."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a chat template may not set {name!r}")
        super().__setitem__(name, value)


_TIMED_FILTER = "_timed"
# Pauses of a virtual machine and collections of garbage count as processor time, so a few seconds end honest templates.
RENDER_SECONDS = 10.0
"""Processor seconds that the template of one conversation may take."""
_CHECKED_STEPS = 256
_deadline: ContextVar[float] = ContextVar("deadline")


def _check_clock() -> None:
    if time.thread_time() > _deadline.get(math.inf):
        raise jinja2.TemplateError(
            f"it needs more than {RENDER_SECONDS:g} s: a loop of the template may have no end"
        )


def _timed(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the values, and end the template if it has taken too long."""
    _check_clock()
    for number, value in enumerate(values):
        if number % _CHECKED_STEPS == 0:
            _check_clock()
        yield value


_GROWING_METHODS = frozenset({"append", "extend", "pop"})


class _Inputs:
    """The lists in the messages and tools of one conversation."""

    def __init__(self, *values: Any) -> None:
        self._values = values
        self._ids: frozenset[int] | None = None

    def contain(self, searched: list[Any]) -> bool:
        """Whether a list is one of them. Compares by identity."""
        if self._ids is None:
            self._ids = frozenset(_ids_of_lists(self._values))
        return id(searched) in self._ids


def _ids_of_lists(value: Any) -> Iterator[int]:
    if isinstance(value, dict):
        for item in value.values():
            yield from _ids_of_lists(item)
    elif isinstance(value, list | tuple):
        yield id(value)
        for item in value:
            yield from _ids_of_lists(item)


_inputs: ContextVar[_Inputs] = ContextVar("inputs")
_NO_INPUTS = _Inputs()


class _TemplateEnvironment(ImmutableSandboxedEnvironment):
    """Sandbox in which `message.role` reads a plain dict's item directly; jinja2 would try the attribute first.

    A template may change lists that it made itself, but no message and no tool. Transformers refuses both; other
    servers accept them, and templates of known models rely on it.
    """

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may read an attribute."""
        if type(obj) is list and attr in _GROWING_METHODS:
            return not _inputs.get(_NO_INPUTS).contain(obj)
        return super().is_safe_attribute(obj, attr, value)

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, filter or macro. Macros that call themselves pass here, too."""
        _check_clock()
        return super().call(context, obj, *args, **kwargs)

    def compile_timed(self, text: str) -> tuple[jinja2.Template, nodes.Template]:
        """Return a template whose loops look at the clock, and its syntax tree as it was written."""
        tree = self.parse(text)
        timed = self.parse(text)
        for loop in timed.find_all(nodes.For):
            loop.iter = nodes.Filter(loop.iter, _TIMED_FILTER, [], [], None, None)
        timed.set_environment(self)
        timed.set_lineno(1, override=False)
        return self.from_string(timed), tree


_DICT_ATTRIBUTES = frozenset(dir(dict))


def _make_environment() -> _TemplateEnvironment:
    environment = _TemplateEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.filters[_TIMED_FILTER] = _timed
    environment.globals.update(raise_exception=_raise_exception, namespace=_SafeNamespace)
    # Local, as in transformers.
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


class ChatTemplate:
    """Compiled chat templates of one model."""

    def __init__(self, templates: Mapping[str, str], specials: Mapping[str, str]) -> None:
        environment = _make_environment()
        self._templates: dict[str, jinja2.Template] = {}
        self._specials = dict(specials)
        texts: set[str] = set()
        names: set[str] = set()
        try:
            for name, text in templates.items():
                self._templates[name], tree = environment.compile_timed(text)
                texts.update(_literal_texts(tree))
                names.update(node.name for node in tree.find_all(nodes.Name))
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(
                f"the model's chat template has a syntax error in line {error.lineno}: {error}"
            ) from error
        self.texts = frozenset(texts)
        # Variables that a template reads.
        self.names = frozenset(names)
        self._needs_functions = False
        if "functions" in names:
            self._needs_functions = self._refuses_without_functions()

    def _refuses_without_functions(self) -> bool:
        """Whether a template renders a message only with the variables of Firefunction, which other servers set."""
        if self._renders_a_message():
            return False
        self._needs_functions = True
        return self._renders_a_message()

    def _renders_a_message(self) -> bool:
        try:
            self.render([{"role": "user", "content": "x"}], (), generation=True)
        except RequestError:
            return False
        return True

    def _server_variables(self, tools: Sequence[Mapping[str, Any]]) -> dict[str, str]:
        """Return the tools as text and the time, if the template needs these variables."""
        if not self._needs_functions:
            return {}
        functions = json.dumps(list(tools), ensure_ascii=False, indent=4) if tools else ""
        return {"functions": functions, "datetime": datetime.now().strftime("%b %d %Y %H:%M:%S")}

    def check_variables(self, variables: Mapping[str, Any]) -> None:
        """Raise `RequestError` if a client's variable would override a reserved name or a special token."""
        for name in variables:
            if name in _RESERVED_NAMES or name in self._specials or name.startswith("_"):
                raise RequestError(
                    f"chat_template_kwargs.{name}: this is set by the server. Send only variables of the model's own "
                    "template, such as enable_thinking.",
                    param=f"chat_template_kwargs.{name}",
                )

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[SerializedTool],
        *,
        generation: bool,
        variables: Mapping[str, Any] = NO_VARIABLES,
    ) -> str:
        """Return the conversation as text; messages come from `to_template_message`, tools from `serialize_tools`.

        Raises `TemplateRefusal` with the template's own message if it rejects the conversation, and `RequestError` from
        `check_variables`.
        """
        template = self._templates.get("tool_use") if tools else None
        if variables:
            self.check_variables(variables)
        clock = _deadline.set(time.thread_time() + RENDER_SECONDS)
        shown_messages = list(messages)
        shown_tools = list(tools)
        inputs = _inputs.set(_Inputs(shown_messages, shown_tools))
        try:
            text = (template or self._templates["default"]).render(
                {
                    **self._server_variables(tools),
                    **variables,
                    "messages": shown_messages,
                    "tools": shown_tools or None,
                    "documents": None,
                    "add_generation_prompt": generation,
                    **self._specials,
                }
            )
            # Every tokenizer needs UTF-8.
            text.encode()
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise RequestError(
                f"the conversation contains half a surrogate pair ({half!r}). Remove it.",
                param="messages",
            ) from None
        except (
            jinja2.TemplateError,
            TypeError,
            ValueError,
            LookupError,
            AttributeError,
            ArithmeticError,
        ) as error:
            raise TemplateRefusal(
                f"the model's chat template refuses this conversation: {remove_marks(str(error))}",
                param="messages",
            ) from error
        finally:
            _deadline.reset(clock)
            _inputs.reset(inputs)
        return text


def _literal_texts(tree: nodes.Template) -> Iterator[str]:
    """Yield the texts that a template writes or compares, and the names of the attributes that it reads."""
    yield from (node.data for node in tree.find_all(nodes.TemplateData))
    yield from (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    yield from (node.attr for node in tree.find_all(nodes.Getattr))


def to_template_message(message: Message) -> dict[str, Any]:
    """Return a client's message as templates expect it: four roles, text content, arguments as objects, no nulls."""
    prepared = {key: value for key, value in message.items() if value is not None}
    role = str(prepared.get("role", ""))
    prepared["role"] = _ROLE_ALIASES.get(role, role)
    prepared["content"] = content_text(prepared.get("content"))
    calls = prepared.pop("tool_calls", None)
    if calls:
        prepared["tool_calls"] = [_parse_call_arguments(call) for call in calls]
    for key in _REASONING_KEYS:
        if key in prepared:
            reasoning = prepared[key]
            return {"thinking": reasoning, **prepared, "reasoning_content": reasoning}
    return prepared


def move_reasoning(message: dict[str, Any], tags: tuple[str, str]) -> dict[str, Any]:
    """Return a prepared reply whose text starts with a block of reasoning with that block as its reasoning.

    Some clients send reasoning back in this form. The template then writes the tags itself, or drops the reasoning.
    """
    content = message["content"]
    if message["role"] != "assistant" or "reasoning_content" in message or tags[1] not in content:
        return message
    before, _, text = content.partition(tags[1])
    start, opened, reasoning = before.partition(tags[0])
    if not opened or start.strip():
        return message
    reasoning = reasoning.strip("\n")
    return {
        "thinking": reasoning,
        **message,
        "reasoning_content": reasoning,
        "content": text.lstrip("\n"),
    }


def content_text(content: Any) -> str:
    """Join content parts without a separator, as templates that read parts do, and as `message_hash` does."""
    if isinstance(content, list):
        return "".join(
            p if isinstance(p, str) else str(p.get("text", p.get("refusal", ""))) for p in content
        )
    return "" if content is None else str(content)


def _parse_call_arguments(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        arguments = _parse_object(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _parse_object(text: str) -> dict[str, Any] | str:
    """Return the JSON object of a text, or the text if it is not one."""
    try:
        value = msgspec.json.decode(text)
    except ValueError:
        # Also half a surrogate pair and NaN, which no prompt may contain.
        return text
    return value if isinstance(value, dict) else text
