"""An engine and a trainer for OpenClaw-RL."""
