"""The page in the browser: what was learned, from which words, and how to take it back."""
