"""The command line: arguments in, calls of the public HTTP API, tables or JSON out."""
