"""A whole cluster on this machine: `pertinax up`, `down` and the watcher of cluster.json.

Importing the package loads nothing: the command line reads `files` at every start.
"""
