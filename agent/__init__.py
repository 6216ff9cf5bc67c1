"""One node's runner: the agent and its keeper.

Of ours it imports `scheduler.protocol` and `wal` only.
"""
