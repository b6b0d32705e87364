"""Parts that the plugins for engines share. Imports no engine."""
