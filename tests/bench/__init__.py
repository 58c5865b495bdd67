"""Benchmarks: ratios measured side by side in one run, medians; never asserted in a test."""
