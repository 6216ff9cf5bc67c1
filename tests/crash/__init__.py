"""Crash consistency of `wal`: every state a power cut can leave, and every kind of damage."""
