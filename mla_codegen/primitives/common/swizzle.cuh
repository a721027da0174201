// Byte offset in a swizzled tile, whose base is a multiple of 8 * kRowBytes: the 16-byte unit is XORed with
// the row (128B mode), half of it (64B) or a quarter (32B). PTX ISA, asynchronous data copies: swizzling.
template <u32 kRowBytes>
__device__ __forceinline__ u32 swizzle(u32 offset) { return offset ^ ((offset >> 3) & (kRowBytes - 16)); }
