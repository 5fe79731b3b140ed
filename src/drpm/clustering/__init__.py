"""Clustering with partitions: mixtures and the scores of a clustering."""
