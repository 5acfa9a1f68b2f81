"""The first hour on a GPU: an ordered list of steps, each with a condition to pass. See gpu.md."""
