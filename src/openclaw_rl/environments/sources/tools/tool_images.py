"""Images that MCP tools return: whether the model gets them, and a note if it cannot see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from openclaw_rl.common.images.image_prompt import UNSEEN_IMAGES
from openclaw_rl.common.printable import echo_error
from openclaw_rl.environments.sources.tools.call_matching import CallMade

# Of an episode: the gateway takes as many in a request.
_MAX_IMAGES = 64


class ToolImages:
    """Chooses which images of tools are sent. The episodes of a run share it, so that what is withheld is said once."""

    def __init__(self, *, wanted: bool, problem: str = "") -> None:
        """`wanted`: by the configuration. `problem`: why the model cannot get them, as far as is known."""
        self._wanted = wanted
        self._problem = problem
        self._has_reported = False

    def choose(self, results: Sequence[CallMade], sent: int) -> list[CallMade]:
        """Return the results with the images that the model gets. `sent`: images of the episode before these.

        The text of a result names each image, also one that is left out.
        """
        left = 0
        if self._wanted and not self._problem:
            left = max(0, _MAX_IMAGES - sent)
        elif self._wanted and any(answered.images for answered in results):
            self._report()
        chosen = []
        for answered in results:
            images = answered.images[:left]
            left -= len(images)
            chosen.append(replace(answered, images=images))
        return chosen

    def note_ignored(self, ignored: str) -> None:
        """Send no further images once the gateway says that the model does not see them. `ignored`: of its header."""
        if UNSEEN_IMAGES in ignored and not self._problem:
            self._problem = "the served model or its engine reads text only"
            self._report()

    def _report(self) -> None:
        if not self._has_reported:
            self._has_reported = True
            echo_error(
                f"note: the model does not get the images of tools, but the text [image]: {self._problem}"
            )
