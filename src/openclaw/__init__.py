"""Names under which descriptions of this program start it (docs/decisions/0013-other-names.md)."""
