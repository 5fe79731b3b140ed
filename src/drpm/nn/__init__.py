"""Pieces of models."""
