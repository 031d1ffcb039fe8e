from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.render.model_folders import make
from tests.render.trl_templates import KINDS, make_kind

from openclaw_rl.render.model_folder import ModelFiles
from openclaw_rl.render.renderer import Renderer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Model folders by the kind of their template."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            found = ModelFiles.from_path("starter").folder if kind == "starter" else None
            write = make_kind if kind in KINDS else make
            made[kind] = found or write(tmp_path_factory.mktemp("model") / kind, kind)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def renderer(folder: Callable[[str], Path]) -> Callable[..., Renderer]:
    """Renderers by the kind of their template: `renderer("chatml", literal_text=True)`."""
    return cache(
        lambda kind, **options: Renderer(ModelFiles.from_path(str(folder(kind))), **options)
    )
