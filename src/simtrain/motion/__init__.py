"""Motions of robots: files, making, conversion and checks. Knows no torch."""
