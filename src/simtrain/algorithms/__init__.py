"""Learning algorithms and their networks. Knows no files and no simulator."""
