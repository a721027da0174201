// Stops the compiler where it puts a member elsewhere than the planner did.
#define MLA_ASSERT_FIELD(type, member, offset, bytes)                                      \
  static_assert(MLA_OFFSETOF(type, member) == (offset) && sizeof(type::member) == (bytes), \
                "planner and compiler disagree on " #type "::" #member "; regenerate")
