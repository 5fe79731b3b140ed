"""Tensor operators behind the relaxed laws; no distribution is known here."""
