"""The identity of a model, without a store that keeps the digests of its weights."""

from __future__ import annotations

from openclaw_rl.common.policy_digest import digest_of_file
from openclaw_rl.render.model_folder import ModelFiles, compute_identity


def identity_of(files: ModelFiles) -> str:
    return compute_identity(files, {path: digest_of_file(path) for path in files.weights})
