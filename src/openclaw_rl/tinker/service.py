"""A session with the Tinker service by its official SDK. The SDK is imported when the session is opened.

The SDK retries time-outs, 429 and 5xx by itself. Every call here ends after `tinker.call_timeout` seconds at the
latest, with an `EngineError` of one line. Shapes: N tokens of a sequence.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from typing import Any, Literal, TypeVar

from openclaw_rl.errors import EngineError, EngineGone, ModelLost
from openclaw_rl.settings.load import Config
from openclaw_rl.tinker.service_errors import (
    describe_error,
    is_model_gone,
    is_session_gone,
    is_transient,
    missing_model,
)

log = logging.getLogger(__name__)
T = TypeVar("T")
# Seconds between attempts to reach a service that refused or did not answer.
RECONNECT_SECONDS = 5.0
# Seconds without an answer after which a checkpoint is looked for in the service's list.
LOST_SECONDS = 20.0
CheckpointKind = Literal["weights", "sampler_weights"]
"""As in paths of checkpoints: weights with the optimizer's state; weights for sampling."""


def import_sdk() -> Any:
    """Import the SDK, which takes about a second."""
    import tinker

    return tinker


class TinkerService:
    """One session with the service. Calls block; several threads may call."""

    def __init__(self, config: Config, load_sdk: Callable[[], Any] = import_sdk) -> None:
        """`load_sdk`: returns the module of the SDK."""
        self._config = config.tinker
        self._load_sdk = load_sdk
        self.model = config.tinker.model or config.model.path
        self.sdk: Any = None
        # Tokens, as the service reports it; None: it does not.
        self.context_length: int | None = None
        self._client: Any = None
        self._lock = threading.Lock()
        self._attempt: _Attempt | None = None
        # When the last attempt to connect failed, and how.
        self._failed: tuple[float, EngineError] | None = None

    def open_session(self) -> Any:
        """Return the SDK's service client; connect first if necessary. Raises `EngineGone`, `EngineError`.

        A service that cannot be reached is reported after `tinker.connect_timeout`; the attempt continues meanwhile.
        """
        with self._lock:
            if self._client is not None:
                return self._client
            if self._failed is not None:
                failed_at, failure = self._failed
                if time.monotonic() - failed_at < RECONNECT_SECONDS:
                    raise failure
            try:
                self._client = self._connect()
            except EngineError as error:
                self._failed = (time.monotonic(), error)
                raise
            return self._client

    def _connect(self) -> Any:
        if self._attempt is None:
            self._attempt = _Attempt(self._ask_capabilities)
        attempt = self._attempt
        if not attempt.wait(self._config.connect_timeout):
            where = self._config.url or "its default address"
            raise EngineGone(
                f"the Tinker service at {where} does not answer within {self._config.connect_timeout:g} s. Check the "
                "network and tinker.url (TINKER_ENDPOINT)"
            )
        self._attempt = None
        try:
            client, capabilities = attempt.result()
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of several libraries
            raise self._to_engine_error(error) from None
        try:
            self._check_model(capabilities)
        except EngineError:
            _close_session(client)
            raise
        return client

    def _ask_capabilities(self) -> tuple[Any, Any]:
        self.sdk = self._load_sdk()
        options = {
            "base_url": self._config.url,
            "api_key": self._config.api_key,
            "project_id": self._config.project_id,
        }
        client = self.sdk.ServiceClient(**{name: value for name, value in options.items() if value})
        try:
            return client, client.get_server_capabilities()
        except BaseException:
            # Whatever it is, nobody else knows the client that sends heartbeats.
            _close_session(client)
            raise

    def _check_model(self, capabilities: Any) -> None:
        """Read the context length of the model. Raises `EngineError` if the service does not have it."""
        models = {str(each.model_name): each for each in capabilities.supported_models}
        if models and self.model not in models:
            raise EngineError(missing_model(self.model, tuple(models), url=self._config.url))
        context = getattr(models.get(self.model), "max_context_length", None)
        self.context_length = int(context) if context else None

    def create_sampler(self, path: str | None) -> Any:
        """Return the SDK's sampling client of a version's weights; None: of the base."""
        chosen = {"base_model": self.model} if path is None else {"model_path": path}
        return self.run_blocking(lambda: self.open_session().create_sampling_client(**chosen))

    def create_model(self, *, rank: int, seed: int | None = None, adapts_head: bool = True) -> Any:
        """Return the SDK's training client of a new adapter of the base. `adapts_head`: the output layer, too."""
        options = {
            "base_model": self.model,
            "rank": rank,
            "seed": seed,
            "train_unembed": adapts_head,
        }
        return self.run_blocking(lambda: self.open_session().create_lora_training_client(**options))

    def save_checkpoint(self, model: Any, kind: CheckpointKind, name: str) -> str:
        """Save the model of a training client under a new name, and return the path. Raises `EngineError`."""
        save = model.save_state if kind == "weights" else model.save_weights_for_sampler
        try:
            saving = save(name).future()
            return self._wait_saved(model, saving, f"/{kind}/{name}")
        except EngineError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of several libraries
            raise self._to_engine_error(error) from None

    def _wait_saved(self, model: Any, saving: Future[Any], ending: str) -> str:
        """Return the path of the checkpoint that is being saved, which ends with `ending`.

        If the answer is lost, the SDK repeats the call. SkyRL's server does not recognise it and refuses the name with
        409, and the SDK repeats that for five minutes. So a checkpoint without an answer is looked for in the service's
        list, which has the complete ones.
        """
        end = time.monotonic() + self._config.call_timeout
        left = self._config.call_timeout
        while left > 0:
            if wait([saving], min(LOST_SECONDS, left)).done:
                answered: str = saving.result().path
                return answered
            checkpoint = self._find_checkpoint(model, ending)
            if checkpoint is not None:
                path = str(checkpoint.tinker_path)
                log.warning("%s is saved; the Tinker service's answer to that is missing", path)
                # The client's next call waits until this one ends.
                saving.cancel()
                return path
            left = end - time.monotonic()
        raise self.timeout_error()

    def _find_checkpoint(self, model: Any, ending: str) -> Any:
        """Return the one in the list of the model's checkpoints whose path ends so; None without it, or the list."""
        listing = self.open_session().create_rest_client().list_checkpoints(model.model_id)
        try:
            listed = listing.result(LOST_SECONDS).checkpoints
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of several libraries; it is asked again
            log.info("the Tinker service does not list checkpoints (%s)", type(error).__name__)
            listing.cancel()
            return None
        return next((each for each in listed if str(each.tinker_path).endswith(ending)), None)

    def find_archive(self, model: Any, name: str) -> str:
        """Return the address of the archive of weights for sampling that were saved. Raises `EngineError`."""
        return self.run_blocking(lambda: self._ask_archive(model, f"/sampler_weights/{name}"))

    def _ask_archive(self, model: Any, ending: str) -> str:
        """The list has the identifier under which this service knows the checkpoint, which is not in its path."""
        end = time.monotonic() + LOST_SECONDS
        checkpoint = self._find_checkpoint(model, ending)
        while checkpoint is None:
            if time.monotonic() >= end:
                raise EngineError(
                    f"the Tinker service does not list {ending}, which it saved; expected it, to download it"
                )
            time.sleep(1.0)
            checkpoint = self._find_checkpoint(model, ending)
        rest = self.open_session().create_rest_client()
        archive = rest.get_checkpoint_archive_url(model.model_id, checkpoint.checkpoint_id)
        return str(archive.result(timeout=self._config.call_timeout).url)

    def start_sampling(
        self,
        sampler: Any,
        ids: Sequence[int],
        *,
        max_tokens: int,
        stop: Sequence[int],
        **sampling: Any,
    ) -> Future[Any]:
        """Start one reply. The future has the SDK's answer, or its error."""
        options = {name: value for name, value in sampling.items() if value is not None}
        params = self.sdk.SamplingParams(max_tokens=max_tokens, stop=list(stop) or None, **options)
        started: Future[Any] = sampler.sample(
            prompt=self.model_input(ids), num_samples=1, sampling_params=params
        )
        return started

    def start_scoring(self, sampler: Any, ids: Sequence[int]) -> Future[Any]:
        """Start to compute [N] log-probabilities of a sequence; the first is None."""
        started: Future[Any] = sampler.compute_logprobs(self.model_input(ids))
        return started

    def model_input(self, ids: Iterable[int]) -> Any:
        """Return token ids in the SDK's form."""
        return self.sdk.ModelInput.from_ints([int(token) for token in ids])

    def run_blocking(self, call: Callable[[], T]) -> T:
        """Return the result of a call of the SDK that blocks. Raises `EngineError`."""
        attempt = _Attempt(call)
        if not attempt.wait(self._config.call_timeout):
            raise self.timeout_error()
        try:
            result: T = attempt.result()
            return result
        except EngineError:
            raise
        except Exception as error:  # noqa: BLE001 - the SDK raises errors of several libraries
            raise self._to_engine_error(error) from None

    def finish_call(self, start: Callable[[], Any]) -> Any:
        """Start a call of the SDK and return its answer. Raises `EngineError`."""
        return self.run_blocking(lambda: start().result(timeout=self._config.call_timeout))

    def timeout_error(self) -> EngineGone:
        """Return the error of a call that took too long."""
        where = self._config.url or "its default address"
        return EngineGone(
            f"the Tinker service at {where} gave no answer within {self._config.call_timeout:g} s "
            "(tinker.call_timeout), its retries included. Try again later"
        )

    @property
    def timeout(self) -> float:
        return self._config.call_timeout

    def _to_engine_error(self, error: BaseException) -> EngineError:
        text = describe_error(error, url=self._config.url, model=self.model)
        if is_session_gone(error):
            self._end_session()
            return ModelLost(text)
        if is_model_gone(error):
            return ModelLost(text)
        return EngineGone(text) if is_transient(error) else EngineError(text)

    def _end_session(self) -> None:
        """Forget a session that the service ended, so that the next call opens another one.

        Without the lock, which `open_session` holds while it connects.
        """
        client = self._client
        self._client = None
        if client is not None:
            log.warning(
                "the Tinker service has ended this session; the next call opens another one"
            )
            _close_session(client)

    def to_engine_error(self, error: BaseException) -> EngineError:
        """Return an error of the SDK as one of ours; one of ours as it is."""
        return error if isinstance(error, EngineError) else self._to_engine_error(error)


def _close_session(client: Any) -> None:
    """End the heartbeats of a session, which otherwise never end: their task keeps the SDK's client alive."""
    _Attempt(lambda: client.holder.close())


class _Attempt:
    """A blocking call in a thread that nobody has to wait for: the process can end while it hangs."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._future: Future[Any] = Future()
        threading.Thread(
            target=self._run_call, args=(call,), daemon=True, name="tinker-call"
        ).start()

    def _run_call(self, call: Callable[[], Any]) -> None:
        try:
            self._future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by `result`
            self._future.set_exception(error)

    def wait(self, timeout: float) -> bool:
        """Wait for the end. Return False after `timeout` seconds."""
        try:
            self._future.exception(timeout)
        except TimeoutError:
            return False
        return True

    def result(self) -> Any:
        return self._future.result()
