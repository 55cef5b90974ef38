"""Scripts that measured something once, with their results."""
