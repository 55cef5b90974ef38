"""Each measured job twice: the textbook way, straight from the formulas, and the product's."""
