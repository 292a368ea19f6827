"""Turning logits into tokens, one batched pass per step."""
