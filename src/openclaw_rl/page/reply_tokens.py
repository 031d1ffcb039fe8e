"""The texts of a reply's tokens, by the model's tokenizer."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from openclaw_rl.settings.load import Config
from openclaw_rl.status.learned import SplitTokens, make_token_splitter


class ReplyTokens:
    """Loads the tokenizer when the first reply is split, because a large vocabulary takes time and memory."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._split: SplitTokens | None = None
        self._is_loaded = False

    def split(self, ids: Sequence[int]) -> list[str] | None:
        """Return the text that each token adds to a reply; None if the tokenizer is not on this machine."""
        with self._lock:
            if not self._is_loaded:
                self._split = make_token_splitter(self._config)
                self._is_loaded = True
            return None if self._split is None else self._split(ids)
