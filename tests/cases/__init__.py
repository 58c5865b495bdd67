"""Failures that people reported about middleware, limiters and GPU servers, each as tests named by its id."""
