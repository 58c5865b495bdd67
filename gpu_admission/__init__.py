"""ASGI middleware that lets GPU work in only when its bytes fit."""
