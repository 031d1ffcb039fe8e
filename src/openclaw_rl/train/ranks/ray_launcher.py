"""Ranks on a Ray cluster: each is a process beside an actor, which starts it and reports its end.

The process runs the same program as with other launchers (`main`). Ray places it, assigns its GPU, and carries the
commands to the machine of rank 0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import Any

from openclaw_rl.common.progress import library_call, record_progress
from openclaw_rl.common.sockets import free_port
from openclaw_rl.errors import RayUnusable
from openclaw_rl.settings import load as settings
from openclaw_rl.settings.load import Config
from openclaw_rl.train.ranks import ray_address, ray_errors
from openclaw_rl.train.ranks.processes import RANK_PROGRAM, ProcessSpec, RankProcesses
from openclaw_rl.train.ranks.rpc import RpcListener

# Seconds.
_POLL_SECONDS = 0.2
# Seconds within which the head of a cluster answers.
_CONNECT_SECONDS = 60.0
# Seconds between two signs of life while a command runs.
_WAIT_SECONDS = 1.0


class RankActor:
    """Ray actor of one rank. Runs `ask` and `wait` concurrently."""

    def address(self) -> tuple[str, int]:
        """Return this machine's address and a free port, for the rendezvous."""
        import ray

        return ray.util.get_node_ip_address(), free_port("")

    def start(self, config: str, rank: int, size: int, where: tuple[str, int]) -> None:
        """Start the rank's process. `config`: the settings as JSON; `where`: address and port of rank 0."""
        logs = Config.model_validate_json(config).logs_dir
        listener = RpcListener() if rank == 0 else None
        spec = _process_spec(config, rank, size, where, listener)
        self._processes = RankProcesses([spec], listener, logs / f"ranks-{rank}.log")

    def ask(self, raw: bytes | None) -> bytes:
        """Send a command to rank 0 and return the reply."""
        return self._processes.send_command(raw)

    def wait(self) -> None:
        """Block until the process ends, then raise `RanksGone`."""
        while True:
            self._processes.check_running()
            time.sleep(_POLL_SECONDS)


def _process_spec(
    config: str, rank: int, size: int, where: tuple[str, int], listener: RpcListener | None
) -> ProcessSpec:
    how = [] if listener is None else ["--link", str(listener.path)]
    extra = {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        # Ray shows an actor only its own GPU.
        "LOCAL_RANK": "0",
        "MASTER_ADDR": where[0],
        "MASTER_PORT": str(where[1]),
        settings.CONFIG_VARIABLE: config,
    }
    return [*RANK_PROGRAM, *how], settings.foreign_environment(extra, loads_models=True)


class RayRanks:
    """`launcher.RankPool` on a Ray cluster."""

    def __init__(self, config: Config) -> None:
        """Raises `RayUnusable` without Ray, its head, or free resources within `train.launch.timeout` seconds."""
        try:
            import ray
        except ImportError:
            raise RayUnusable(
                "train.launch.by is ray, which is not installed: pip install 'openclaw-rl[ray]'"
            ) from None
        self._ray: Any = ray
        self._actors: list[Any] = []
        self._group: Any = None
        self._connect(config.train.launch.ray)
        try:
            self._place_actors(config, config.train.ranks * config.train.launch.nodes)
            self._exit_refs = self._start_ranks(config)
        except BaseException as error:
            # Also an interrupt: the cluster must not keep the place.
            self.close()
            if isinstance(error, ray.exceptions.RayError):
                raise ray_errors.start_error(error) from error
            raise

    def _connect(self, address: str) -> None:
        # "local" is passed explicitly: else Ray tries the cluster that it remembers, and waits if that is gone.
        where = {"address": address} | ({"include_dashboard": False} if address == "local" else {})
        if problem := ray_address.connection_problem(ray_address.find_address(address)):
            raise ray_errors.connect_error(address, ConnectionError(problem))
        try:
            answered = (
                self._start_local(where)
                if address == "local"
                else self._init_within(_CONNECT_SECONDS, where)
            )
        except Exception as error:
            # Ray raises `Exception` itself, too: for a node that is slow to start.
            raise ray_errors.connect_error(address, error) from error
        if not answered:
            raise ray_errors.silence_error(address, _CONNECT_SECONDS)

    def _init(self, where: Mapping[str, Any]) -> None:
        self._ray.init(**where, log_to_driver=False, ignore_reinit_error=True)

    def _start_local(self, where: Mapping[str, Any]) -> bool:
        """Start a Ray of this process, in this thread: its processes end with the thread that started them."""
        with library_call():
            self._init(where)
        return True

    def _init_within(self, seconds: float, where: Mapping[str, Any]) -> bool:
        """Connect. Return False after these seconds: Ray tries on, in a thread that ends with the process.

        It asks a head that has ended for a quarter of an hour.
        """
        connected: Future[None] = Future()

        def connect() -> None:
            try:
                self._init(where)
            except BaseException as error:  # noqa: BLE001 - raised again by `result`
                connected.set_exception(error)
            else:
                connected.set_result(None)

        threading.Thread(target=connect, name="ray-init", daemon=True).start()
        with library_call():
            answered = bool(wait([connected], seconds).done)
        if answered:
            connected.result()
        return answered

    def _start_ranks(self, config: Config) -> list[Any]:
        """Start a process beside each actor. Return what ends when a process ends."""
        address = self._ray.get(self._actors[0].address.remote())
        size = len(self._actors)
        settings = Config(
            home=config.home, model=config.model, train=config.train, run=config.run
        ).model_dump_json()
        self._ray.get(
            [
                place.start.remote(settings, rank, size, address)
                for rank, place in enumerate(self._actors)
            ]
        )
        return [place.wait.remote() for place in self._actors]

    def _place_actors(self, config: Config, size: int) -> None:
        ray = self._ray
        train = config.train
        gpus = (
            1
            if ray.cluster_resources().get("GPU") and not config.model.device.startswith("cpu")
            else 0
        )
        bundle = {"CPU": train.threads} | ({"GPU": gpus} if gpus else {})
        self._group = ray.util.placement_group([bundle] * size, strategy="PACK")
        try:
            ray.get(self._group.ready(), timeout=train.launch.timeout)
        except ray.exceptions.GetTimeoutError:
            raise RayUnusable(
                f"the Ray cluster has no place for {size} times {bundle} within {train.launch.timeout:g} s. "
                f"It has {ray.cluster_resources()}. Lower train.ranks or train.threads, or add machines"
            ) from None
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        self._actors = [
            ray.remote(RankActor)
            .options(
                num_cpus=train.threads,
                num_gpus=gpus,
                max_concurrency=2,
                scheduling_strategy=strategy(self._group, placement_group_bundle_index=number),
            )
            .remote()
            for number in range(size)
        ]

    def send_command(self, raw: bytes | None) -> bytes:
        answer = self._actors[0].ask.remote(raw)
        done: list[Any] = []
        try:
            # Ranks that hang end after `train.launch.timeout`.
            while not done:
                done, _ = self._ray.wait(
                    [answer, *self._exit_refs], num_returns=1, timeout=_WAIT_SECONDS
                )
                record_progress()
            reply = self._ray.get(done[0])
        except self._ray.exceptions.RayError as error:
            raise ray_errors.lost_error(error) from None
        assert isinstance(reply, bytes), reply
        return reply

    def close(self) -> None:
        if not self._ray.is_initialized():
            return
        for place in self._actors:
            self._ray.kill(place)
        if self._group is not None:
            self._ray.util.remove_placement_group(self._group)
