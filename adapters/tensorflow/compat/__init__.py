"""Private and undocumented parts of TensorFlow that this library relies on, one function for each.

Each docstring says what it relies on, with which releases that was tried ("Tried with: all" means 2.15 and 2.21), how
it notices that the part has changed, and what the user loses then. `python -m perseus_like.tensorflow.compat` checks
all of them on the installed TensorFlow. The C++ files of this folder do the same for the native library.

A module here knows TensorFlow only, and never the rest of the adapter: what it needs of that is an argument.
"""
