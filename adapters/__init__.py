"""Sources of perseus_like.<framework>, installed under that name; never imported from here."""

raise ImportError(
    "'adapters' is a folder of sources, not a package: import perseus_like.torch (or .numpy, …). "
    "They are installed with perseus_like: pip install ."
)
