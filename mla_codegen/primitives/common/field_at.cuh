// True where the compiler puts a member where the planner did.
#define MLA_FIELD_AT(type, member, offset, bytes) \
  (MLA_OFFSETOF(type, member) == (offset) && sizeof(type::member) == (bytes))
