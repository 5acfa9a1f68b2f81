"""Private and undocumented parts of Keras that this library relies on, one function for each.

Each docstring says what it relies on, with which releases that was tried ("Tried with: all" means 3.15 and 2.15), how
it notices that the part has changed, and what the user loses then. `python -m perseus_like.keras.compat` checks all of
them on the installed Keras.

A module here knows Keras only, and never the rest of the adapter: what it needs of that is an argument.
"""
