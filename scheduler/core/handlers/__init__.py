"""One module per noun; each `apply_<entry>(turn, entry)` returns the entry's outcome."""
