"""Practice: the trainer learns between conversations what people said in words."""
