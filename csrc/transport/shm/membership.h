// The shared memory of one group: every member's block, and when it may be reused.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "transport/shm/arena.h"
#include "transport/shm/seat.h"

namespace perseus::shm {

// Blocks that their owner has left and others may still look at. Any thread.
class Retired {
 public:
  struct Block {
    void* memory = nullptr;
    const std::atomic<std::uint32_t>* left = nullptr;  // inside the block
    std::uint32_t members = 0;
  };

  void add(Block block);
  // Gives back the blocks that nobody looks at any more.
  void sweep(Arena& arena);

 private:
  std::mutex mutex_;  // guards blocks_
  std::vector<Block> blocks_;
};

// A member's view of its group's blocks; shared by the group's transport and its control channel.
class Membership {
 public:
  // `blocks[r]` begins with member r's Seat.
  Membership(std::shared_ptr<Arena> arena, std::shared_ptr<Retired> retired, int rank, std::vector<int> local_ranks,
             std::vector<std::byte*> blocks);
  // Tells all members that this one will not look at their blocks again.
  ~Membership();
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  Arena& arena() const { return *arena_; }
  int local_rank_of(int member) const { return local_ranks_[static_cast<std::size_t>(member)]; }
  std::byte* block(int member) const { return blocks_[static_cast<std::size_t>(member)]; }
  Seat& seat(int member) const { return *reinterpret_cast<Seat*>(block(member)); }

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<Retired> retired_;
  int rank_;
  std::vector<int> local_ranks_;
  std::vector<std::byte*> blocks_;
};

}  // namespace perseus::shm
