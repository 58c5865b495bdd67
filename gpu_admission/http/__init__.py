"""The edge: bodies read and replayed, refusals rendered. Nothing here decides who may start."""
