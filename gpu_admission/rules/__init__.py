"""Which requests are metered, and by what."""
