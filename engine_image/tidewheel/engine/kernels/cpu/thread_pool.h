// parallel_for on a fixed set of threads, made for cores that are shared with others.
//
// OpenMP waits at the end of a loop for every thread, also for one that the system has not let run yet; on a busy
// machine a step of 240 short loops then takes many times as long. Here whoever runs claims the next index, and the
// caller waits only for what was claimed. Idle workers spin briefly, so that the next loop finds them awake, and sleep.
// One caller at a time.
#pragma once
#include <immintrin.h>
#include <sched.h>

#include <atomic>
#include <cstdint>
#include <thread>

class ThreadPool {
 public:
  int size() const { return size_; }

  // Threads are only ever added; with fewer than before, the surplus stays asleep.
  void resize(int size) {
    for (; created_ < size; created_++) std::thread(&ThreadPool::work, this, created_).detach();
    size_ = size;
  }

  template <class Body>
  void run(int64_t count, const Body& body) {
    if (size_ == 1 || count <= 1) {
      for (int64_t i = 0; i < count; i++) body(i);
      return;
    }
    call_ = [](const void* b, int64_t i) { (*static_cast<const Body*>(b))(i); };
    body_ = &body;
    count_ = count;
    unfinished_.store(count, std::memory_order_relaxed);
    uint32_t loop = loop_.load(std::memory_order_relaxed) + 1;
    unclaimed_.store(uint64_t(loop) << 32 | uint64_t(count), std::memory_order_release);
    loop_.store(loop);
    loop_.notify_all();
    while (claim_and_call()) {
    }
    for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; spins++)
      spins < 2000 ? _mm_pause() : (void)sched_yield();
  }

 private:
  // The loop's number above, what is left of it below: a claim by a thread that slept through a loop's end fails. What
  // else describes the loop stays as it is until all that was claimed is finished, so it is read after the claim.
  bool claim_and_call() {
    uint64_t left = unclaimed_.load(std::memory_order_relaxed);
    do {
      if (uint32_t(left) == 0) return false;
    } while (!unclaimed_.compare_exchange_weak(left, left - 1, std::memory_order_acquire));
    call_(body_, count_ - uint32_t(left));
    unfinished_.fetch_sub(1, std::memory_order_release);
    return true;
  }

  void work(int index) {
    constexpr int SPINS = 2000;  // about 50 us
    for (int spins = 0;;) {
      uint32_t loop = loop_.load();
      if (index < size_ && claim_and_call()) spins = 0;
      else if (++spins < SPINS) _mm_pause();
      else {
        loop_.wait(loop);
        spins = 0;
      }
    }
  }

  std::atomic<int> size_{1};
  int created_ = 1;
  void (*call_)(const void*, int64_t) = nullptr;
  const void* body_ = nullptr;
  int64_t count_ = 0;
  alignas(64) std::atomic<uint64_t> unclaimed_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) std::atomic<uint32_t> loop_{0};
};
