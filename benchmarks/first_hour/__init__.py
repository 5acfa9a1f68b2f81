"""Programs that check and measure this library on a GPU, and the ordered list of steps that run them. See gpu.md."""
