"""The HTTP API: translation only. Parse, ask the service, render (specification 6.4)."""
