"""One budget, many processes: the same ledger in each, kept equal by one ordered log."""
