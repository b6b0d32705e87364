"""Options of loads and of object stores: types, checks, environment variables."""
