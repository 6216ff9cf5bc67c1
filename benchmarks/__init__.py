"""One named question a file; `python -m benchmarks NAME [--json]`. Results: docs/benchmarks.md."""
