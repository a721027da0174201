"""What a call may pass and what the kernel gets of it, stated once for the GPU and the emulator.

Arrays are looked at as an address and a form; nothing here reads their elements or knows their library.
"""
