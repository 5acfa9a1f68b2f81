"""Private and undocumented parts of MXNet that this library relies on, one function for each.

Each docstring says what it relies on, with which release that was tried, how it notices that the part has changed, and
what the user loses then. `python -m perseus_like.mxnet.compat` checks all of them on the installed MXNet. The C++ files
of this folder do the same for the native library.

A module here knows MXNet only, and never the rest of the adapter: what it needs of that is an argument.
"""
