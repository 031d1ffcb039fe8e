"""The source `tools`: tasks for agents that call tools (docs/guides/tool_environments.md)."""
