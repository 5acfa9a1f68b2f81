"""Private and undocumented parts of torch that this library relies on, one function for each.

Each docstring says what it relies on, with which releases that was tried ("Tried with: all" means 2.1, 2.13, 2.14 and
2.15), how it notices that the part has changed, and what the user loses then. `python -m perseus_like.torch.compat`
checks all of them on the installed torch.

A module here knows torch only, and never the rest of the adapter: what it needs of that is an argument.
"""
