"""Tokens to text and back: tokenizer, chat template, streaming detokenizer, stop strings."""
