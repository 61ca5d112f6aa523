"""Benchmarks: `make bench`, or `make bench ARGS="edge.w3 path"` for a part. See the README."""
