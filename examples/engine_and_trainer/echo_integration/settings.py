"""Section `echo` of the settings."""

from pydantic import Field

from openclaw_rl.settings.strict_yaml import Section


class EchoConfig(Section):
    """The engine that always gives the same reply (engine.backend echo)."""

    reply: str = Field("Noted.", description="text of every reply")
