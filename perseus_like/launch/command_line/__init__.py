"""The command line of perseusrun: its options, their defaults and completion, and what each command does."""
