"""The train stage: makes policy versions from judged turns."""
