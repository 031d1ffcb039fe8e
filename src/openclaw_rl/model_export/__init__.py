"""Export of a version as a model of its own: merged weights in transformers' layout, and GGUF by llama.cpp."""
