"""Judges calls with the checker of bfcl-eval, unmodified: rows with replies as JSON lines in, its verdicts out.

Run under a Python that has bfcl-eval without what it depends on. The checker needs of it only whether dots in names of
functions become underscores, which is true of a model behind the chat completions API.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType, SimpleNamespace

models = ModuleType(
    "bfcl_eval.constants.model_config"
)  # the real one imports the clients of twenty services
models.MODEL_CONFIG_MAPPING = {"openclaw": SimpleNamespace(underscore_to_dot=True)}
sys.modules[models.__name__] = models

from bfcl_eval.constants.enums import Language  # noqa: E402
from bfcl_eval.eval_checker.ast_eval.ast_checker import ast_checker  # noqa: E402

for line in sys.stdin:
    row = json.loads(line)
    verdicts = []
    for calls in row["calls"]:
        try:
            found = ast_checker(
                row["function"],
                calls,
                row["ground_truth"],
                Language.PYTHON,
                row["category"],
                "openclaw",
            )
            verdicts.append(found["valid"])
        except Exception:  # noqa: BLE001 - where it cannot compare, its own runner would end
            verdicts.append(None)
    sys.stdout.write(json.dumps(verdicts) + "\n")
