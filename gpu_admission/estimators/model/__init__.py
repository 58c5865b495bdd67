"""A model as its config describes it: what formulas count with."""
