"""A process that computes the digest of a file for a store, and prints who hashes it.

Run as `python -m tests.store.hash_weights STORE FILE`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from openclaw_rl.store.db import Store
from openclaw_rl.store.file_digests import DigestProgress, digest_files


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(store_path: Path, file: Path) -> None:
    def show(progress: DigestProgress) -> None:
        say(f"hashed by {progress.pid}")

    with Store.open(store_path) as store:
        say("ready")
        digest = digest_files(store, [file], report=show)[file]
    say(f"digest {digest.hex()}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
