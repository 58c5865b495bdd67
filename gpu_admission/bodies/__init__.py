"""From bytes to values: what a body holds, whatever it asks for."""
