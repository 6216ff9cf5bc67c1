"""The API in process: requests as ASGI calls against a service that remembers what it was asked."""
