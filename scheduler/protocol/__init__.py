"""All that crosses a process boundary: ids, the job specification, messages and framing.

Written as a library of its own: it imports nothing else of this project, and the agents use it too.
"""
