from __future__ import annotations

from tests.train.conftest import builder, fill, judged, renderer, store

__all__ = ["builder", "fill", "judged", "renderer", "store"]
