// Fibers: one per CUDA thread, all of a CTA on one thread of the operating system.
//
// A switch saves the callee-saved registers on the fiber's own stack and swaps stack pointers; hosts other
// than x86-64 and aarch64 use ucontext.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#if !defined(__x86_64__) && !defined(__aarch64__) && !defined(MLA_EMULATOR_UCONTEXT)
#define MLA_EMULATOR_UCONTEXT 1
#endif
#if defined(MLA_EMULATOR_UCONTEXT)
#if defined(__APPLE__) && !defined(_XOPEN_SOURCE)
#define _XOPEN_SOURCE 600
#endif
#include <ucontext.h>
#endif

#if defined(__APPLE__)
#define MLA_ASM_NAME(name) "_" name
#else
#define MLA_ASM_NAME(name) name
#endif

namespace mla::emulator {

#if defined(MLA_EMULATOR_UCONTEXT)
struct FiberContext {
  ucontext_t context;
};
inline void fiber_switch(FiberContext& from, FiberContext& to) { swapcontext(&from.context, &to.context); }
inline void fiber_prepare(FiberContext& fiber, void* stack, std::size_t bytes, void (*entry)()) {
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = stack;
  fiber.context.uc_stack.ss_size = bytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, entry, 0);
}
#else
struct FiberContext {
  void* stack_pointer;
};
extern "C" void mla_emulator_switch(void** save, void* load);

#if defined(__x86_64__)
constexpr int kSavedWords = 6;
asm(".text\n"
    ".globl " MLA_ASM_NAME("mla_emulator_switch") "\n" MLA_ASM_NAME("mla_emulator_switch") ":\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp, (%rdi)\n"
    "movq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\n"
    "retq\n");
#else
constexpr int kSavedWords = 20;  // x19-x30, d8-d15
asm(".text\n"
    ".p2align 2\n"
    ".globl " MLA_ASM_NAME("mla_emulator_switch") "\n" MLA_ASM_NAME("mla_emulator_switch") ":\n"
    "sub sp, sp, #160\n"
    "stp x19, x20, [sp, #0]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\nstp d14, d15, [sp, #144]\n"
    "mov x9, sp\n"
    "str x9, [x0]\n"
    "mov sp, x1\n"
    "ldp x19, x20, [sp, #0]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\nldp d14, d15, [sp, #144]\n"
    "add sp, sp, #160\n"
    "ret\n");
#endif

inline void fiber_switch(FiberContext& from, FiberContext& to) {
  mla_emulator_switch(&from.stack_pointer, to.stack_pointer);
}
// The first switch to `fiber` enters `entry`, which never returns.
inline void fiber_prepare(FiberContext& fiber, void* stack, std::size_t bytes, void (*entry)()) {
  auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{63};
  auto* word = reinterpret_cast<void**>(top);
#if defined(__x86_64__)
  *--word = nullptr;  // what the entry would return to; keeps the stack aligned as after a call
  *--word = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedWords; ++i) *--word = nullptr;
#else
  for (int i = 0; i < kSavedWords; ++i) *--word = nullptr;
  word[11] = reinterpret_cast<void*>(entry);  // x30
#endif
  fiber.stack_pointer = word;
}
#endif

// Stacks of equal size, each above a page that faults, so that an overflow never reaches a neighbour.
class StackPool {
 public:
  StackPool() = default;
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;
  ~StackPool() {
    if (base_ != nullptr) munmap(base_, count_ * stride_);
  }
  bool reserve(std::size_t count, std::size_t bytes) {
    if (base_ != nullptr && count_ >= count) return true;
    if (base_ != nullptr) munmap(base_, count_ * stride_);
    page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    bytes_ = (bytes + page_ - 1) / page_ * page_;
    stride_ = bytes_ + page_;
    count_ = count;
    int flags = MAP_PRIVATE | MAP_ANON;
#if defined(MAP_NORESERVE)
    flags |= MAP_NORESERVE;
#endif
    void* mapped = mmap(nullptr, count_ * stride_, PROT_READ | PROT_WRITE, flags, -1, 0);
    base_ = mapped == MAP_FAILED ? nullptr : static_cast<std::uint8_t*>(mapped);
    if (base_ == nullptr) return false;
    for (std::size_t i = 0; i < count_; ++i) mprotect(base_ + i * stride_, page_, PROT_NONE);
    return true;
  }
  // Neighbouring stacks start at different cache sets.
  void* stack(std::size_t index) const { return base_ + index * stride_ + page_; }
  std::size_t bytes(std::size_t index) const { return bytes_ - (index % 32) * 128; }

 private:
  std::uint8_t* base_ = nullptr;
  std::size_t count_ = 0, stride_ = 0, bytes_ = 0, page_ = 0;
};

}  // namespace mla::emulator
