"""Trainable models: LoRA, quantized and full weights, activation checkpointing, EMA teacher."""
