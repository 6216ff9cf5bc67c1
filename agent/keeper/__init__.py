"""The jobs' parent: a process of its own that outlives the agent. Standard library and msgpack."""
