"""What a load tells: its report, progress, log lines and spans."""
