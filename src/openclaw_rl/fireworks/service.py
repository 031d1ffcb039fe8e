"""Calls of the management API of Fireworks: look up a base, upload an adapter, create a deployment, load a version.

An upload has four steps: create the model, get an address for each file, send the files, and ask for the validation
until it is done. The addresses are signed: the key does not go to them.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from typing import Any
from urllib.parse import urlencode

from openclaw_rl.common.http.blocking import open_url
from openclaw_rl.errors import OpenClawError
from openclaw_rl.fireworks.adapter_export import AdapterExport
from openclaw_rl.settings.load import FireworksConfig

# Seconds.
_CALL_TIMEOUT = 60.0
# Seconds that the transfer of a file may pause.
_SEND_TIMEOUT = 600.0
_POLL_SECONDS = 2.0
READY = "READY"
# The name of the status, or its number.
_NOT_YET = re.compile(r'FAILED_PRECONDITION|"code": ?9\b')


class ServiceRefused(OpenClawError):
    """Raised if the service answers with an error. `status`: of the HTTP answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class FireworksService:
    """The management API with the settings' key and account."""

    def __init__(self, fireworks: FireworksConfig) -> None:
        self._url = fireworks.url.rstrip("/")
        self._key = fireworks.api_key
        self._account = f"accounts/{fireworks.account}"

    def check_base(self, name: str, model_path: str) -> None:
        """Raise `OpenClawError` if the service has no such base, or one without adapters or of another model."""
        try:
            model = self._call("GET", f"/v1/{name}")
        except ServiceRefused as error:
            if error.status == 404:
                raise OpenClawError(
                    f"Fireworks has no model {name} (fireworks.base_model). `firectl model list --account fireworks` "
                    "lists its models; a base of your own is uploaded with `firectl model create`"
                ) from None
            raise
        if model.get("kind") == "HF_PEFT_ADDON":
            raise OpenClawError(
                f"{name} (fireworks.base_model) is an adapter itself. Name the base that it adapts"
            )
        if not model.get("supportsLora"):
            raise OpenClawError(
                f"Fireworks serves no adapters on {name} (fireworks.base_model). Name another base"
            )
        theirs = (
            str(model.get("huggingFaceUrl") or "")
            .rstrip("/")
            .removeprefix("https://huggingface.co/")
        )
        is_hub_id = model_path.count("/") == 1 and not model_path.startswith((".", "/", "~"))
        if theirs and is_hub_id and theirs.lower() != model_path.lower():
            raise OpenClawError(
                f"{name} (fireworks.base_model) is {theirs}, and the adapter was trained on {model_path}. Name the "
                "same model"
            )

    def upload_adapter(
        self,
        model_id: str,
        base: str,
        export: AdapterExport,
        *,
        within: float,
        seen: Callable[[str], None],
    ) -> str:
        """Upload an adapter and return its resource name, once the service has validated it.

        Idempotent: a model of this name that is ready is left as it is, and an interrupted upload continues. Raises
        `OpenClawError` if the validation takes longer than `within` seconds.
        """
        name = f"{self._account}/models/{model_id}"
        if self._find_or_create(name, model_id, base, export) == READY:
            seen(f"{name} was uploaded before")
            return name
        sizes = {file: str(len(raw)) for file, raw in export.files.items()}
        places = self._call("POST", f"/v1/{name}:getUploadEndpoint", {"filenameToSize": sizes})
        addresses = places.get("filenameToSignedUrls") or {}
        missing = sorted(sizes.keys() - addresses.keys())
        if missing:
            raise OpenClawError(
                f"Fireworks gives no address to send {', '.join(missing)} of {name} to. Try again later"
            )
        for file, raw in export.files.items():
            self._send_file(addresses[file], file, raw)
            seen(f"sent {file}: {len(raw)} bytes")
        self._wait_until_valid(name, within)
        return name

    def _find_or_create(self, name: str, model_id: str, base: str, export: AdapterExport) -> str:
        """Return the state of the model, and create it if it does not exist."""
        try:
            return str(self._call("GET", f"/v1/{name}").get("state"))
        except ServiceRefused as error:
            if error.status != 404:
                raise
        details = {"baseModel": base, "r": export.rank, "targetModules": list(export.targets)}
        model = {"kind": "HF_PEFT_ADDON", "peftDetails": details}
        created = self._call(
            "POST", f"/v1/{self._account}/models", {"modelId": model_id, "model": model}
        )
        return str(created.get("state"))

    def _wait_until_valid(self, name: str, within: float) -> None:
        end = time.monotonic() + within
        while True:
            try:
                self._call("GET", f"/v1/{name}:validateUpload")
                return
            except ServiceRefused as error:
                # FAILED_PRECONDITION while files arrive.
                if error.status != 400 or not _NOT_YET.search(str(error)):
                    raise
                if time.monotonic() > end:
                    raise OpenClawError(
                        f"Fireworks has not validated {name} within {within:g} s: {error}. Run this again: it continues"
                    ) from None
            time.sleep(_POLL_SECONDS)

    def create_deployment(self, base: str, deployment: str, gpus: int) -> bool:
        """Create a deployment of a base on which adapters can be loaded, with no replica while it is idle.

        Return False if it exists, as after a run that was interrupted.
        """
        body = {
            "baseModel": base,
            "enableAddons": True,
            "acceleratorCount": gpus,
            "minReplicaCount": 0,
        }
        query = urlencode({"deploymentId": deployment})
        return self._create_once(f"/v1/{self._account}/deployments?{query}", body)

    def load_on_deployment(self, name: str, deployment: str) -> None:
        """Load an uploaded adapter on a deployment. Idempotent."""
        body = {"model": name, "deployment": f"{self._account}/deployments/{deployment}"}
        self._create_once(f"/v1/{self._account}/deployedModels", body)

    def _create_once(self, path: str, body: Any) -> bool:
        """Create something. Return False if it exists."""
        try:
            self._call("POST", path, body)
        except ServiceRefused as error:
            if error.status != 409:
                raise
            return False
        return True

    def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Return the JSON answer. Raises `ServiceRefused`, or `OpenClawError` if the service cannot be reached."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        raw = _send_request(
            method, self._url + path, data, headers, _CALL_TIMEOUT, of=f"{method} {path}"
        )
        try:
            answer = json.loads(raw or b"{}")
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise OpenClawError(
                f"Fireworks answered {method} {path} with something else than a JSON object ({raw[:100]!r}). Check "
                "fireworks.url, and that no proxy answers in its place"
            )
        return answer

    @staticmethod
    def _send_file(address: str, name: str, raw: bytes) -> None:
        headers = {
            "Content-Type": "application/octet-stream",
            "x-goog-content-length-range": f"{len(raw)},{len(raw)}",
        }
        _send_request("PUT", address, raw, headers, _SEND_TIMEOUT, of=f"sending {name}")


def _send_request(
    method: str, url: str, data: bytes | None, headers: Mapping[str, str], limit: float, *, of: str
) -> bytes:
    request = urllib.request.Request(url, data=data, headers=dict(headers), method=method)
    try:
        with open_url(request, timeout=limit, follow_redirects=False) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        message = _read_words(error)
        if 300 <= error.code < 400:
            raise ServiceRefused(
                f"the address of Fireworks redirects {of} ({error.code}), and the key goes to fireworks.url alone. Set "
                "it to the address that answers",
                error.code,
            ) from None
        if error.code in (401, 403):
            raise ServiceRefused(
                f"Fireworks refused the key ({error.code}) for {of}. Set fireworks.api_key (FIREWORKS_API_KEY) to a "
                "key of the account in fireworks.account",
                error.code,
            ) from None
        raise ServiceRefused(
            f"Fireworks refused {of} ({error.code}): {message}", error.code
        ) from None
    except (OSError, ValueError, HTTPException) as error:
        reason = " ".join(str(getattr(error, "reason", error)).split())
        raise OpenClawError(
            f"Fireworks cannot be reached for {of} ({reason}). Run this again: it continues"
        ) from None


def _read_words(error: urllib.error.HTTPError) -> str:
    """Return what an error answer says in one line; its reason, if the answer is cut off."""
    try:
        return " ".join(error.read().decode(errors="replace")[:500].split())
    except (OSError, HTTPException):
        return str(error.reason)
