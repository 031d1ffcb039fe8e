"""`python -m openclaw_rl`: another name for `openclaw-rl`."""

from openclaw_rl.cli.main import main

if __name__ == "__main__":
    main()
