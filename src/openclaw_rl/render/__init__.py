"""Chat templates, tokenizers and reply parsers."""
