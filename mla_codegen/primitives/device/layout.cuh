// Constant byte offset of a member; NVRTC has neither offsetof nor __builtin_offsetof.
#define MLA_OFFSETOF(type, member) __INTADDR__(&((type*)0)->member)
