#include "transport/shm/group_view.h"

#include <utility>

namespace perseus::shm {

void RetiredBlocks::add(Block&& block) {
  std::scoped_lock lock(mutex_);
  blocks_.push_back(std::move(block));
}

void RetiredBlocks::sweep(Arena& arena) {
  std::scoped_lock lock(mutex_);
  std::erase_if(blocks_, [&](const Block& block) {
    if (block.left->load(std::memory_order_acquire) < block.members) return false;
    for (void* memory : block.laid_out) arena.release(memory);
    arena.release(block.memory);
    return true;
  });
}

GroupView::GroupView(std::shared_ptr<Arena> arena, std::shared_ptr<ExternalSegments> external,
                     std::shared_ptr<RetiredBlocks> retired, int rank, std::vector<int> local_ranks,
                     std::vector<std::byte*> blocks)
    : arena_(std::move(arena)),
      external_(std::move(external)),
      retired_(std::move(retired)),
      rank_(rank),
      local_ranks_(std::move(local_ranks)),
      blocks_(std::move(blocks)) {}

GroupView::~GroupView() {
  for (int member = 0; member < size(); ++member) header(member).left.fetch_add(1, std::memory_order_acq_rel);
  retired_->add(
      {block(rank_), &header(rank_).left, static_cast<std::uint32_t>(size()), {laid_out_.begin(), laid_out_.end()}});
  retired_->sweep(*arena_);
}

void* GroupView::lay_out(std::size_t bytes) {
  void* const memory = arena_->allocate(bytes);
  if (memory != nullptr) laid_out_.insert(memory);
  return memory;
}

void GroupView::take_back(void* memory) {
  if (laid_out_.erase(memory) > 0) arena_->release(memory);
}

std::optional<Place> GroupView::place_of(const void* data, std::size_t bytes) const {
  if (const auto offset = arena_->offset_of(data, bytes)) return Place{Place::kArena, *offset};
  return external_->find(data, bytes, local_ranks_);
}

std::shared_ptr<std::byte> GroupView::at(int member, Place place, std::uint64_t bytes) const {
  if (place.segment != Place::kArena) return external_->at(local_rank_of(member), place, bytes);
  return {std::shared_ptr<void>(), arena_->at(local_rank_of(member), place.offset, bytes)};  // mapped as long as this
}

}  // namespace perseus::shm
