"""Comparisons of arc with other engines on the same checkpoint."""
