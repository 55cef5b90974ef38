"""Tables and figures from results; reads run folders only."""
