"""Pages of the gateway itself: at its root, and while the page is starting."""

from __future__ import annotations

import base64
import hashlib

from aiohttp import web

_ROOT_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>OpenClaw-RL</title></head><body>
<h1>OpenClaw-RL</h1>
<p>This gateway serves a model behind an OpenAI-compatible API at <code>/v1</code>, and trains it on what people say
next.</p>
<p>{page}</p>
</body></html>
"""
_WITH_PAGE = (
    "A page shows what it has learned. On the machine that runs it, <code>openclaw-rl open</code> prints a link to the "
    'page; a browser that has used one finds it at <a href="/ui">/ui</a>.'
)
_WITHOUT_PAGE = "Its page is turned off (<code>serve.page: false</code>)."
# A script, because `http-equiv="refresh"` does not load an address with a fragment again, as every new link has one.
_RELOAD_SCRIPT = "setTimeout(() => window.location.reload(), 2000);"
_RELOAD_DIGEST = base64.b64encode(hashlib.sha256(_RELOAD_SCRIPT.encode()).digest()).decode()
_STARTING_HTML = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>OpenClaw-RL</title><script>{_RELOAD_SCRIPT}</script></head>
<body><h1>OpenClaw-RL</h1><p>The page is starting. This loads again by itself.</p></body></html>
"""
_ROOT_POLICY = f"default-src 'none'; script-src 'sha256-{_RELOAD_DIGEST}'; frame-ancestors 'none'; base-uri 'none'"


async def show_root(request: web.Request, *, has_page: bool) -> web.Response:
    """Say to a browser what this is. Raises `HTTPNotFound` for programs, whose error names the routes."""
    if "text/html" not in request.headers.get("Accept", ""):
        raise web.HTTPNotFound
    return _html_response(_ROOT_HTML.format(page=_WITH_PAGE if has_page else _WITHOUT_PAGE), 200)


def starting_page() -> web.Response:
    """Return a page that loads again by itself."""
    return _html_response(_STARTING_HTML, 503)


def _html_response(html: str, status: int) -> web.Response:
    headers = {"Content-Security-Policy": _ROOT_POLICY, "X-Frame-Options": "DENY"}
    return web.Response(text=html, status=status, content_type="text/html", headers=headers)
