"""Policy-gradient and distillation losses."""
