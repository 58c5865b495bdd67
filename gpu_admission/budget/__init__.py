"""Who may start: the ledger and what it counts with. Pure and synchronous: no clock, no I/O."""
