"""Source folder of the adapters. They are installed as perseus_like.<framework>; nothing is imported from here."""

raise ImportError("import perseus_like.torch, perseus_like.numpy, … instead of adapters.<framework>")
