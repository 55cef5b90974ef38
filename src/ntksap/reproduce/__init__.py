"""The paper's tables and figures, carried out again: a plan per table or figure, ours beside the paper's."""
