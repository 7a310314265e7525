"""What only a machine with a GPU can show: `make gpu-check`. Writes docs/gpu.md."""
