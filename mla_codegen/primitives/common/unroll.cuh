// Before a loop of a constant number of steps: all of them one after the other, so that arrays are registers.
#define MLA_UNROLL _Pragma("unroll")
