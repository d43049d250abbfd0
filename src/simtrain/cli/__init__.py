"""Commands: each module parses, calls and prints, and leaves the work to other packages."""
