#include "engine/session/registry.h"

#include <utility>

namespace perseus {

// Releases the registrations outside the lock, because a release waits for the device.
void Registry::Entry::end() {
  std::vector<std::shared_ptr<void>> last;
  const std::scoped_lock lock(mutex);
  gone = true;
  last.swap(held);
}

std::shared_ptr<void> Registry::add(void* memory, std::size_t bytes) {
  auto entry = std::make_shared<Entry>();
  entry->memory = memory;
  entry->bytes = bytes;
  {
    const std::scoped_lock lock(mutex_);
    new_.push_back(entry);
  }
  return {memory, [entry](void*) { entry->end(); }};
}

void Registry::enroll_new(const Enroll& enroll) {
  std::vector<std::weak_ptr<Entry>> coming;
  {
    const std::scoped_lock lock(mutex_);
    if (new_.empty()) return;
    coming.swap(new_);
    std::erase_if(enrolled_, [](const auto& each) { return each.expired(); });
    enrolled_.insert(enrolled_.end(), coming.begin(), coming.end());
  }
  for (const auto& each : coming) {
    const auto entry = each.lock();
    if (!entry) continue;
    const std::scoped_lock lock(entry->mutex);
    if (!entry->gone) entry->held = enroll(entry->memory, entry->bytes);
  }
}

void Registry::end() {
  std::vector<std::weak_ptr<Entry>> all;
  {
    const std::scoped_lock lock(mutex_);
    all.swap(enrolled_);
    all.insert(all.end(), new_.begin(), new_.end());
    new_.clear();
  }
  for (const auto& each : all) {
    if (const auto entry = each.lock()) entry->end();
  }
}

}  // namespace perseus
