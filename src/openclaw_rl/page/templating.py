"""Render the templates of the page. Every text is escaped, and shown without characters that would change others."""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from openclaw_rl.common.printable import REPLACEMENT, cut_text, to_printable

FOLDER = Path(__file__).parent
STATIC_FOLDER = FOLDER / "static"


class TemplateRenderer:
    """Renders whole pages, or single blocks of them for parts that are updated."""

    def __init__(self) -> None:
        self._environment = jinja2.Environment(
            loader=jinja2.FileSystemLoader(FOLDER / "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            finalize=_make_harmless,
            auto_reload=False,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            time=format_time,
            number=format_number,
            signed=format_signed,
            cut=cut_text,
            code=format_code,
        )
        self._environment.globals["static_version"] = _static_version()

    def render(self, name: str, data: Mapping[str, Any], *, block: str | None = None) -> str:
        """Return a page as HTML. `block`: only this block of the template, if it has one of this name."""
        template = self._environment.get_template(name)
        if block is None or block not in template.blocks:
            return _encodable(template.render(data))
        context = template.new_context(dict(data))
        return _encodable("".join(template.blocks[block](context)))


def _make_harmless(value: Any) -> Any:
    """Replace control characters and direction marks of a value; markup of the templates is left as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    text = to_printable(value)
    return REPLACEMENT if _is_invisible(text) else text


def _is_invisible(text: str) -> bool:
    """Return whether a text has nothing but characters without width, such as a joiner: a link would have no name."""
    marks = text.strip()
    return bool(marks) and all(unicodedata.category(mark) == "Cf" for mark in marks)


def _encodable(html: str) -> str:
    """Replace lone surrogates, which UTF-8 cannot encode and filters may have passed on."""
    return html.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _static_version() -> str:
    """Return a number that changes with the files of the page, for the browser's cache."""
    newest = max(file.stat().st_mtime_ns for file in STATIC_FOLDER.iterdir() if file.is_file())
    return f"{newest // 1_000_000:x}"


def format_time(at: float | None) -> Markup:
    """Return a time; the browser shows it relative to now in its own language, and exactly when it is pointed at."""
    if at is None:
        return Markup("–")
    try:
        moment = datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):
        return Markup(REPLACEMENT)
    exact = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    template = '<time datetime="{}" title="{}" data-time>{}</time>'
    return Markup(template).format(
        moment.isoformat(timespec="seconds"), exact, _relative_time(time.time() - at)
    )


def _relative_time(seconds: float) -> str:
    """Return how long ago something was, for browsers without scripts."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if abs(seconds) >= size:
            count = f"{abs(seconds) / size:.0f} {unit}"
            return f"{count} ago" if seconds > 0 else f"in {count}"
    return "now"


def format_number(value: float | None, digits: int = 0) -> Markup:
    """Return a number, which the browser shows in its own language."""
    if value is None:
        return Markup("–")
    template = '<data value="{}" data-number data-digits="{}">{}</data>'
    return Markup(template).format(value, digits, f"{value:,.{digits}f}")


def format_code(text: str) -> Markup:
    """Return a text in which everything between two backticks is shown as code."""
    shown = Markup()
    pieces = str(_make_harmless(text)).split("`")
    for number, piece in enumerate(pieces):
        is_closed = number + 1 < len(pieces)
        if number % 2 == 0:
            shown += piece
        elif is_closed:
            shown += Markup("<code>{}</code>").format(piece)
        else:
            shown += "`" + piece
    return shown


def format_signed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:+.{digits}f}"
