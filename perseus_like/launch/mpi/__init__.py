"""Starting ranks through the mpirun that is installed, in its own dialect."""
