// Reciprocal and quotient, rounded to nearest even as IEEE 754 has it. PTX ISA: rcp.rn.f32, div.rn.f32.
__device__ __forceinline__ float rcp_rn(float x) { return __frcp_rn(x); }
__device__ __forceinline__ float div_rn(float x, float y) { return __fdiv_rn(x, y); }
