"""Sources of loads: locations, headers, and how both are opened."""
