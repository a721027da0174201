"""Generated kernels in other libraries' places for attention; nothing here is imported by default."""
