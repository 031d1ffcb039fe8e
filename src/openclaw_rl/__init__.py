"""OpenClaw-RL: you talk to it, it gets better while you talk."""

__version__ = "0.1.0"
