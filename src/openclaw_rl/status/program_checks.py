"""Diagnoses of the programs that the system uses, checked directly: the engine, and the head of a Ray cluster."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from openclaw_rl.errors import OpenClawError
from openclaw_rl.settings.load import Config
from openclaw_rl.settings.registry import engine_spec, trainer_spec
from openclaw_rl.settings.specs import is_installed, missing_modules
from openclaw_rl.status.health import Diagnosis
from openclaw_rl.train.ranks import ray_address, ray_errors

# Seconds for ray.init.
_RAY_INIT_TIMEOUT = 20.0


def check_engine(config: Config) -> Diagnosis | None:
    """Check the version of the configured engine, as before a start."""
    # Imported here to keep `status` fast.
    from openclaw_rl.engines import registry

    try:
        # A start checks the others, after the owner has agreed.
        if engine_spec(config).starts_before_consent:
            registry.check_engine(config)
    except OpenClawError as error:
        return engine_diagnosis(config, str(error))
    return None


def engine_diagnosis(config: Config, evidence: str) -> Diagnosis:
    """Return the diagnosis of an engine that does not start, with another one that can be started here."""
    backend = config.engine.backend
    engine = engine_spec(config)
    proposed = engine.alternatives if config.engine.url is None else ()
    other = next((name for name in proposed if _can_start(config, name)), None)
    repair = engine.repair or f"`openclaw-rl doctor --engine {backend}` the failing check"
    advice = f"repair it: logs/ has its last output, {repair}"
    diagnosis = Diagnosis(
        name=f"the {backend} engine does not start", evidence=evidence, advice=advice
    )
    if other is None:
        return diagnosis
    return replace(diagnosis, settings={"engine.backend": other}, advice=f"or {advice}")


def _can_start(config: Config, backend: str) -> bool:
    """Return whether this engine can be started instead."""
    from openclaw_rl.engines import registry

    changed = config.engine.model_copy(update={"backend": backend})
    other = config.model_copy(update={"engine": changed})
    if any(map(missing_modules, engine_spec(other).libraries(other))):
        return False
    try:
        registry.check_engine(other)
    except OpenClawError:
        return False
    return True


def check_trainer(config: Config) -> Diagnosis | None:
    """Check the configured trainer, as before a start."""
    trainer = trainer_spec(config)
    try:
        trainer.check_start(config)
    except OpenClawError as error:
        advice = f": {trainer.repair}" if trainer.repair else ", as its message says"
        return Diagnosis(
            name=f"the {trainer.name} trainer does not start",
            evidence=str(error),
            advice=f"repair it{advice}",
        )
    return None


def check_ray_head(config: Config) -> Diagnosis | None:
    """Check that Ray is installed and its head answers, if ranks are launched by Ray."""
    launch = config.train.launch
    if launch.launcher != "ray":
        return None
    address = ray_address.find_address(launch.ray)
    problem = ray_address.connection_problem(address)
    if problem is not None:
        return ray_diagnosis(config, f"train.launch.ray: {problem}")
    if not is_installed("ray"):
        unknown = "; without it, a Ray head at its address cannot be verified" * (":" in address)
        return ray_diagnosis(
            config,
            f"train.launch.by is ray, which is not installed here: pip install 'openclaw-rl[ray]'{unknown}",
        )
    wrong = "" if address == "local" else _ray_refusal_reason(address)
    return ray_diagnosis(config, f"train.launch.ray: {wrong}") if wrong else None


def _ray_refusal_reason(address: str) -> str:
    """Return why `ray.init` fails at an address where something answers, or at `auto`; empty if it succeeds."""
    code = "import sys, ray; ray.init(address=sys.argv[1], log_to_driver=False)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, address],
            capture_output=True,
            timeout=_RAY_INIT_TIMEOUT,
            check=False,
        )
        failed = done.returncode != 0
        output = done.stderr
    except subprocess.TimeoutExpired as error:
        # Ray itself retries for a quarter of an hour.
        failed = True
        output = error.stderr or b""
    if not failed:
        return ""
    if b"InvalidAuthToken" in output:
        return f"the head at {address} requires a token: set RAY_AUTH_MODE=token here too, with its token"
    mismatch = ray_errors.find_mismatch(output.decode(errors="replace"))
    if mismatch:
        return (
            f"the head at {address} has other versions: {mismatch}. Install those of the head here"
        )
    if ray_address.host_and_port(address) is None:
        return f"{address} finds no Ray head that this machine can use. Give its address, HOST:PORT"
    return f"something answers at {address}, but it is not a Ray head that this machine can use"


def ray_diagnosis(config: Config, seen: str) -> Diagnosis:
    """Return the diagnosis of ranks that Ray does not start, with the other launcher."""
    return Diagnosis(
        name="Ray does not take the work",
        evidence=seen,
        settings={"train.launch.by": "local" if config.train.launch.nodes == 1 else "torchrun"},
        advice="or start a head: `ray start --head --port=6379`; `ray job submit` needs its dashboard: --address "
        "http://HOST:8265",
    )
