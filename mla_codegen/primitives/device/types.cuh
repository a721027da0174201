// Fixed-width types and the opaque tensor map; no CUDA or C++ header is needed.
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
// CUtensorMap: 128 bytes that only cuTensorMapEncodeTiled writes and only the copy engine reads.
struct alignas(64) TensorMap {
  u64 opaque[16];
};
