// A bulk copy of a box from shared to global memory, as far as it lies in the tensor; belongs to the
// next commit_group of this thread. PTX ISA: cp.async.bulk.tensor; sm_90 and later.
__device__ __forceinline__ void cp_async_bulk_tensor_store_3d(const TensorMap* map, u32 source, i32 x, i32 y,
                                                              i32 z) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];" ::"l"(map),
      "r"(source), "r"(x), "r"(y), "r"(z)
      : "memory");
}
