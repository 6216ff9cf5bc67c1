"""The replicated state machine. Pure: no clock, no randomness, no input or output.

`apply.apply(state, entry, index) -> Applied` is the one door in; `placement.plan_placement`,
`effects.pending_effects`, `due` and `queries` only read. See `state.ClusterState`.
"""
