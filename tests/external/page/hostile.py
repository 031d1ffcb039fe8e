"""Texts that would run or change something if a page showed them as anything but text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

MARK = "hacked"
"""Name of the variable that a text would set in the browser."""
SCRIPT = f"window.{MARK}=1"
_ELEMENTS = (
    "<script>{s}</script>",
    "<img src=x onerror={s}>",
    "<svg onload={s}>",
    "<svg><script>{s}</script></svg>",
    "<svg><animate onbegin={s} attributeName=x dur=1s>",
    "<iframe srcdoc='<script>parent.{s}</script>'></iframe>",
    "<body onload={s}>",
    "<details open ontoggle={s}>x</details>",
    "<input autofocus onfocus={s}>",
    "<a href='javascript:{s}'>x</a>",
    "<form action='javascript:{s}'><button>x</button></form>",
    "<math><mtext><img src=x onerror={s}></mtext></math>",
    "<template><img src=x onerror={s}></template>",
    "<object data='javascript:{s}'></object>",
    "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "<base href='http://evil.example/'>",
    "<link rel=stylesheet href='http://evil.example/x.css'>",
    "<style>@import 'http://evil.example/x.css'</style>",
    "<div hx-get='http://evil.example/' hx-trigger=load>x</div>",
    "<div hx-on:load='{s}' data-act=x>x</div>",
)
_PREFIXES = ("", '"', "'", '">', "'>", "</textarea>", "</title>", "-->", "]]>", "`")
_MARKDOWN = (
    "[x](javascript:{s})",
    "![x](http://evil.example/x.png)",
    "{{{{7*7}}}}",
    "{{% raw %}}",
    "${{7*7}}",
)
_CONTROLS = (
    "\x00\x01\x1b[31m",
    "\u202eevil\u202c",
    "\u2066x\u2069\u200f",
    "\ud800",
    "a\udc00b",
    "\u2028\u2029",
    "\x7f\x9f",
    "\ufeff\u200b",
)


def hostile_texts(count: int = 200) -> list[str]:
    """Return different texts: elements behind ends of attributes and elements, markdown, templates, odd characters."""
    return [text for text, _ in zip(_all_texts(), range(count), strict=False)]


def _all_texts() -> Iterator[str]:
    for text in (*_MARKDOWN, *_CONTROLS):
        yield text.format(s=SCRIPT) if "{" in text else text
    for element, prefix in product(_ELEMENTS, _PREFIXES):
        yield prefix + element.format(s=SCRIPT)
