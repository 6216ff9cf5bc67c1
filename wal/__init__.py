"""Durable bytes: a checksummed write-ahead log, one-value cells and snapshots.

Knows no Raft and no jobs. Standard library only.
"""
