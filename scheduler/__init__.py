"""The scheduler. Importing `scheduler.protocol` loads nothing else of this package."""
