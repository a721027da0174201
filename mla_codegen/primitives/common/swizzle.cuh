// Byte offset inside a swizzled tile whose base is a multiple of 8 * kRowBytes: the 16-byte unit is XORed
// with the row (128B mode), half the row (64B) or a quarter of it (32B). PTX ISA, asynchronous data copies:
// swizzling modes.
template <u32 kRowBytes>
__device__ __forceinline__ u32 swizzle(u32 offset) {
  return offset ^ ((offset >> 3) & (kRowBytes - 16));
}
