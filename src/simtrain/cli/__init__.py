"""Commands: each module parses, calls and prints, and leaves the work to the rooms below."""
