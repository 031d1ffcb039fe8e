"""Entry point of `python -m openclaw_rl`, the same as the command `openclaw-rl`."""

from openclaw_rl.cli.main import main

if __name__ == "__main__":
    main()
