// Orders this thread's ordinary shared-memory accesses before later ones of the async proxy
// (tensor cores, copy engine). PTX ISA: fence.proxy.async; sm_90 and later.
__device__ __forceinline__ void fence_proxy_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
