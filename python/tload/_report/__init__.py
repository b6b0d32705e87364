"""Reports of loads, their progress, log lines and spans."""
