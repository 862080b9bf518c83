"""The airline domain of tau2-bench (tau3-airline in the paper): task files, statistics, parts of the adapter."""
