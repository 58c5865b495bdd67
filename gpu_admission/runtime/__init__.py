"""What the interpreter runs us in: the event loop, threads and forks, each written once."""
