// Gives access to the shared memory of one group, and tracks when its blocks may be reused.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "transport/shm/member_header.h"
#include "transport/shm/memory/arena.h"
#include "transport/shm/memory/external_segments.h"

namespace perseus::shm {

// Blocks that their owner no longer uses and other members may still read. Thread-safe.
class RetiredBlocks {
 public:
  struct Block {
    void* memory = nullptr;
    const std::atomic<std::uint32_t>* left = nullptr;  // inside the block
    std::uint32_t members = 0;
    std::vector<void*> laid_out;  // memory of point-to-point messages that no member has received
  };

  void add(Block&& block);
  // Frees the blocks that no member reads any more.
  void sweep(Arena& arena);

 private:
  std::mutex mutex_;  // guards blocks_
  std::vector<Block> blocks_;
};

// A member's view of its group's blocks; shared by the group's transport and its control channel.
class GroupView {
 public:
  // `blocks[r]` begins with member r's MemberHeader.
  GroupView(std::shared_ptr<Arena> arena, std::shared_ptr<ExternalSegments> external,
            std::shared_ptr<RetiredBlocks> retired, int rank, std::vector<int> local_ranks,
            std::vector<std::byte*> blocks);
  // Records in all blocks that this member will not read them again.
  ~GroupView();
  GroupView(const GroupView&) = delete;
  GroupView& operator=(const GroupView&) = delete;

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(blocks_.size()); }
  Arena& arena() const { return *arena_; }
  ExternalSegments& external() const { return *external_; }
  int local_rank_of(int member) const { return local_ranks_[static_cast<std::size_t>(member)]; }
  std::byte* block(int member) const { return blocks_[static_cast<std::size_t>(member)]; }
  MemberHeader& header(int member) const { return *reinterpret_cast<MemberHeader*>(block(member)); }

  // Allocates memory for a message to another member; null if there is none. It is freed by take_back(), or once no
  // member uses the group any more.
  void* lay_out(std::size_t bytes);
  void take_back(void* memory);

  // Returns the place of a range of this member's memory, if all members can reach it.
  std::optional<Place> place_of(const void* data, std::size_t bytes) const;
  // Returns the address of a place in a member's memory, or null if there is none. Hold the pointer while it is used.
  std::shared_ptr<std::byte> at(int member, Place place, std::uint64_t bytes) const;

 private:
  std::shared_ptr<Arena> arena_;
  std::shared_ptr<ExternalSegments> external_;
  std::shared_ptr<RetiredBlocks> retired_;
  int rank_;
  std::vector<int> local_ranks_;
  std::vector<std::byte*> blocks_;
  std::unordered_set<void*> laid_out_;  // the control channel's thread uses it
};

}  // namespace perseus::shm
