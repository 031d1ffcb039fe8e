"""Self-tests of a running installation: pipeline, engine and rollouts."""
