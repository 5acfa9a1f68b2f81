"""The collectives and messages of a process group, in all their forms."""
