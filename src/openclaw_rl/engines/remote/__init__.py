"""Engines behind HTTP: vLLM, SGLang and OpenAI-compatible servers."""
