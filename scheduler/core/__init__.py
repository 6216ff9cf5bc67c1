"""The replicated state machine. Pure: no clock, no randomness, no input or output."""
