"""From bytes to values: what a body contains, whatever it asks for."""
