"""Benchmarks: each file here measures one part beside the honest alternative; `figures` says what the numbers mean."""
