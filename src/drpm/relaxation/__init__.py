"""Tensor operators of the relaxed distributions."""
