"""Jobs on several hosts whose ranks the launcher starts over ssh by itself."""
