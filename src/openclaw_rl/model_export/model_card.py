"""The model card of a merged model (README.md, with the metadata that the hub reads)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from pathlib import Path

import yaml

from openclaw_rl import __version__
from openclaw_rl.common.assets import ASSETS, STARTER
from openclaw_rl.common.packaged_models import PACKAGED_MODELS
from openclaw_rl.model_export.logprob_check import Agreement
from openclaw_rl.types import Policy

CARD_FILE = "README.md"
_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)
_LICENCE_KEYS = ("license", "license_name", "license_link")
_HUB_CACHE_FOLDER = re.compile(r"models--([^/]+)--([^/]+)/snapshots/")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSource:
    """Where a base is from, without the paths of this machine. `hub_id`: None if it is not from the hub."""

    title: str
    hub_id: str | None
    licence: dict[str, str]  # metadata of its card, empty if it states none


def describe_base(name: str, folder: Path) -> BaseSource:
    """Describe the base `name`, as settings and versions name it, whose files are in `folder`."""
    licence = _read_licence(folder / CARD_FILE)
    packaged = next(
        (model for model in PACKAGED_MODELS.values() if model.folder.resolve() == folder.resolve()),
        None,
    )
    if packaged is not None:
        return BaseSource(
            title=packaged.title,
            hub_id=None,
            licence=licence or {"license": packaged.licence.lower()},
        )
    if folder.resolve() == (ASSETS / STARTER).resolve():
        return BaseSource(title=f"the {STARTER} of OpenClaw-RL", hub_id=None, licence=licence)
    in_cache = _HUB_CACHE_FOLDER.search(f"{folder}/")
    if in_cache is not None:
        hub_id = f"{in_cache[1]}/{in_cache[2]}"
        return BaseSource(title=hub_id, hub_id=hub_id, licence=licence)
    if _HUB_ID.fullmatch(name) and not Path(name).is_dir():
        return BaseSource(title=name, hub_id=name, licence=licence)
    return BaseSource(title=folder.name, hub_id=None, licence=licence)


def make_card(
    policy: Policy,
    base: BaseSource,
    *,
    how: str,
    weights_dtype: str,
    agreement: Agreement | None,
    at: float,
) -> str:
    """Return the text of the card. `how`: a sentence on how the weights were computed; `at`: Unix time."""
    metadata: dict[str, object] = {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
    }
    metadata["tags"] = ["openclaw-rl"]
    if base.hub_id is not None:
        metadata |= {"base_model": base.hub_id, "base_model_relation": "finetune"}
    metadata |= base.licence
    licence = base.licence.get("license", "the base states none here; see its own card")
    if agreement is None:
        checked = "not compared with the version"
    else:
        checked = (
            f"log-probabilities differ from those of the version by at most {agreement.largest:.2g} nats "
            f"({agreement.values} compared, bound {agreement.bound:g})"
        )
    rows = [
        ("base", base.title),
        ("licence of the base", licence),
        ("version", f"{policy.version}, sha256 of its weights {policy.digest}"),
        ("made with", f"OpenClaw-RL {__version__}, {time.strftime('%Y-%m-%d', time.gmtime(at))}"),
        ("type of the weights", weights_dtype),
        ("check", checked),
    ]
    table = "\n".join(f"| {name} | {value} |" for name, value in rows)
    front = yaml.safe_dump(metadata, sort_keys=False, allow_unicode=True)
    return (
        f"---\n{front}---\n\n"
        f"# {base.title}, version {policy.version}\n\n"
        "A language model that was trained on the conversations that it served, and on how people reacted to its "
        "replies. Like any model, it may repeat what it was trained on: look at it before you share it.\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        f"{how}\n"
    )


def _read_licence(card: Path) -> dict[str, str]:
    """Return what the card of a model says about its licence; empty if there is no card or it cannot be read."""
    try:
        front = _FRONT_MATTER.match(card.read_text(encoding="utf-8"))
        metadata = None if front is None else yaml.safe_load(front[1])
    except (OSError, UnicodeDecodeError, yaml.YAMLError):
        return {}
    if not isinstance(metadata, dict):
        return {}
    return {key: str(metadata[key]) for key in _LICENCE_KEYS if metadata.get(key)}
