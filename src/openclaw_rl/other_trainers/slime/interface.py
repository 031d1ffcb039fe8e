"""The published interface of slime that the adapter uses: release 0.3.1 (tag v0.3.1, commit a6272da0d).

Standard library only, as all of this folder, which runs in slime's environment.
"""

from __future__ import annotations

import re
from typing import Any

RELEASE = "0.3.1"
MIN_VERSION = (0, 3, 1)
VERSION_BELOW = (0, 4)
ROLLOUT_PATH = "openclaw_rl.other_trainers.slime.rollout.generate_rollout"
"""For `--rollout-function-path`."""
HOOK_PATH = "openclaw_rl.other_trainers.slime.weight_update.publish_weights"
"""For `--custom-update-weight-post-write-path`."""
ROLLOUT_PARAMETERS = ("args", "rollout_id", "data_source", "evaluation")
HOOK_PARAMETERS = ("args", "version_dir", "rollout_engines")
SAMPLE_FIELDS = frozenset(
    {
        "group_index",
        "index",
        "rollout_id",
        "tokens",
        "response_length",
        "loss_mask",
        "rollout_log_probs",
        "reward",
        "teacher_log_probs",
        "weight_versions",
        "remove_sample",
        "status",
        "metadata",
    }
)
"""Fields of `slime.utils.types.Sample` that are filled."""
COMPLETED = "completed"
"""Value of `Sample.Status.COMPLETED`."""


def version_problem(version: str) -> str | None:
    """Return why this version of slime is not supported, or None."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:3])
    if MIN_VERSION <= numbers < VERSION_BELOW:
        return None
    return f"slime {version or 'of unknown version'}; expected {RELEASE} up to 0.4. Install the tag v{RELEASE}"


def missing_fields(sample_class: Any) -> list[str]:
    """Return the fields that the adapter fills and this class does not have."""
    return sorted(SAMPLE_FIELDS - set(getattr(sample_class, "__dataclass_fields__", ())))
