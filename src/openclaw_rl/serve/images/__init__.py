"""Images of requests: what is admitted, and the prompts that the engine renders with them."""
