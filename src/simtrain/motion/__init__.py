"""Motions of robots: their files, and what makes, converts and checks them. Knows no torch."""
