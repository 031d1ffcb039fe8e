"""A web server with an archive of an adapter, as the Tinker service's addresses of downloads lead to."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import TracebackType
from typing import Any, Self

import numpy as np
from safetensors.numpy import save

RANK = 8
Q_PROJ = "base_model.model.model.layers.0.self_attn.q_proj"
SETTINGS = {
    "peft_type": "LORA",
    "r": RANK,
    "lora_alpha": 32.0,
    "target_modules": None,
    "base_model_name_or_path": "x",
}


def make_matrices(
    module: str = Q_PROJ, *, into: int = 16, out: int = 32, rank: int = RANK
) -> dict[str, Any]:
    random = np.random.default_rng(0)
    shapes = {"A": (rank, into), "B": (out, rank)}
    return {
        f"{module}.lora_{s}.weight": random.normal(size=shape).astype(np.float32)
        for s, shape in shapes.items()
    }


def make_files(matrices: Mapping[str, Any] | None = None, **settings: Any) -> dict[str, bytes]:
    """The files of an adapter as SkyRL's server has them: no modules are named."""
    weights = save(dict(make_matrices() if matrices is None else matrices))
    return {
        "adapter_model.safetensors": weights,
        "adapter_config.json": json.dumps(SETTINGS | settings).encode(),
    }


def make_archive(files: Mapping[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


class ArchiveServer:
    """Answers every path with `archive`. `broken`: answers that end in the middle before the first whole one."""

    def __init__(self, archive: bytes, *, broken: int = 0) -> None:
        self.archive, self.broken = archive, broken
        self.paths: list[str] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.paths.append(self.path)
                self.send_response(200)
                self.send_header("Content-Length", str(len(server.archive)))
                self.end_headers()
                is_broken = len(server.paths) <= server.broken
                self.wfile.write(
                    server.archive[: len(server.archive) // 2] if is_broken else server.archive
                )

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
