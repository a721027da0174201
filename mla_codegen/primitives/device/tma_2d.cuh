// A bulk copy of a box from global to shared memory; its bytes are counted on an mbarrier.
// PTX ISA: cp.async.bulk.tensor; sm_90 and later.
__device__ __forceinline__ void cp_async_bulk_tensor_2d(u32 destination, const TensorMap* map, u32 barrier,
                                                        i32 x, i32 y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%3, %4}], [%2];" ::"r"(destination),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
