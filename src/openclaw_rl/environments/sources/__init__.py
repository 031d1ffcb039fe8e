"""Sources of tasks besides `command` and `process`: one module or folder each."""
