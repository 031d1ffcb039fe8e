"""Names under which descriptions of this program start it (docs/decisions/0013-compatibility-commands.md)."""
