"""Generative factors under weak supervision: what two images share, and what they do not."""
