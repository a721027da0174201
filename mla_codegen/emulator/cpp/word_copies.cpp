// cp.async: each thread copies words of 4, 8 or 16 bytes; complete for whoever saw the mbarrier phase that
// they arrive on, or is ordered after the thread's own wait.
#include "engine.hpp"

namespace mla::emulator {

void word_copy(u32 destination, const void* source, u32 bytes, u32 source_bytes, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  check_bounds(destination, bytes, bytes, line, "cp.async");
  if (source_bytes > bytes)
    fatal(HazardKind::bounds, line, "cp.async of %u bytes takes %u from memory", bytes, source_bytes);
  if (source_bytes != 0) find_range(source, source_bytes, line, "cp.async");
  if (f.word_operation == 0) {
    f.word_operation = (u32)e.operations.size();
    e.operations.push_back({OperationKind::word_copies, false, 0, (u32)line, f.thread, kNever, 0, kNever});
  }
  note_copy_write(destination, bytes, f.word_operation, line);
  for (u32 a = destination; a < destination + bytes; a += 4) memcpy(e.smem + a, &kPoison, 4);
  f.open_words.push_back({destination, bytes, source_bytes, source});
}

void move_words(const PendingCopy& copy) {
  for (const WordCopy& word : copy.words) {
    u8* to = engine->smem + word.smem;
    memset(to, 0, word.bytes);
    if (word.source_bytes != 0) memcpy(to, word.source, word.source_bytes);
  }
}

void word_copies_arrive(u32 barrier, int line) {
  Engine& e = *engine;
  Fiber& f = current();
  const u32 index = barrier_for_word_copies(barrier, line);
  tick(f);
  if (f.word_operation == 0) {
    f.word_operation = (u32)e.operations.size();
    e.operations.push_back({OperationKind::word_copies, false, 0, (u32)line, f.thread, kNever, 0, kNever});
  }
  PendingCopy copy{};
  copy.kind = OperationKind::word_copies;
  copy.operation = f.word_operation;
  copy.barrier = index;
  copy.ready_time = now() + 500;
  copy.words = std::move(f.open_words);
  f.open_words.clear();
  f.word_operation = 0;
  e.copies.push_back(std::move(copy));
  complete_early();
}

// Completes what this thread has issued, in flight or not yet put on a barrier.
void word_copies_wait(int) {
  Engine& e = *engine;
  Fiber& f = current();
  for (size_t i = 0; i < e.copies.size();) {
    const u32 operation = e.copies[i].operation;
    if (e.copies[i].kind != OperationKind::word_copies || e.operations[operation].thread != f.thread) {
      ++i;
      continue;
    }
    const PendingCopy copy = std::move(e.copies[i]);
    e.copies.erase(e.copies.begin() + (std::ptrdiff_t)i);
    move_words(copy);
    e.operations[operation].group = clock_of(f);
    complete_word_copies_on(copy.barrier, copy.ready_time, e.operations[operation]);
  }
  if (f.word_operation != 0) {
    PendingCopy copy{};
    copy.words = std::move(f.open_words);
    move_words(copy);
    e.operations[f.word_operation].done = true;
    e.operations[f.word_operation].group = clock_of(f);
    f.open_words.clear();
    f.word_operation = 0;
  }
}

}  // namespace mla::emulator
