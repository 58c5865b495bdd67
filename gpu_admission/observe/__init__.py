"""What an operator sees: metrics, the status page, the decision log."""
