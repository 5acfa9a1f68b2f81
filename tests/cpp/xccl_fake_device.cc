// The fake library's streams, their memory, and jobs of its ranks.
#include <cstdlib>
#include <utility>
#include <vector>

#include "xccl_fake.h"

namespace perseus::testing {
namespace {

class LibraryFabric final : public Fabric {
 public:
  LibraryFabric(int rank, std::shared_ptr<const xccl::Library> library, Liveness& liveness)
      : rank_(rank), library_(std::move(library)), liveness_(liveness) {}

  Link connect(std::span<const int> members, const BootstrapAllgather& exchange) override {
    xccl::Participant joining;
    joining.library = library_;
    if (library_->traits.blocking) {
      joining.device = std::make_shared<xccl::HostDevice>();
    } else {
      joining.device = std::make_shared<FakeDevice>(/*reduces=*/true);
    }
    return {xccl::connect(joining, members, rank_, exchange, liveness_), nullptr};
  }
  void* allocate(std::size_t bytes) override { return std::calloc(1, bytes); }
  void release(void* memory) override { std::free(memory); }
  std::string description() const override { return "a library of threads"; }

 private:
  int rank_;
  std::shared_ptr<const xccl::Library> library_;
  Liveness& liveness_;
};

}  // namespace

FakeStream::FakeStream() {
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !queue_.empty() || closed_; });
      if (queue_.empty()) return;
      const auto work = queue_.front();
      lock.unlock();
      work();
      lock.lock();
      queue_.pop_front();
    }
  });
}

FakeStream::~FakeStream() {
  {
    const std::scoped_lock lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void FakeStream::add(std::function<void()> work) {
  const std::scoped_lock lock(mutex_);
  queue_.push_back(std::move(work));
  changed_.notify_all();
}

bool FakeStream::idle() {
  const std::scoped_lock lock(mutex_);
  return queue_.empty();
}

void FakeDevice::release(void* memory) {
  stream_.add([this, memory] { host_.release(memory); });
}

void FakeDevice::copy(void* to, const void* from, std::size_t bytes) {
  stream_.add([=, this] { host_.copy(to, from, bytes); });
}

void FakeDevice::pack(const Reduction& reduction, Pieces from, void* to) {
  stream_.add([=, this, pieces = std::vector(from.begin(), from.end())] { host_.pack(reduction, pieces, to); });
}

void FakeDevice::unpack(const Reduction& reduction, const void* from, Pieces to) {
  stream_.add([=, this, pieces = std::vector(to.begin(), to.end())] { host_.unpack(reduction, from, pieces); });
}

void FakeDevice::reduce(const Reduction& reduction, std::span<const void* const> from, void* to, std::int64_t count) {
  stream_.add([=, this, all = std::vector(from.begin(), from.end())] { host_.reduce(reduction, all, to, count); });
}

std::vector<std::unique_ptr<Fabric>> make_library_fabrics(int ranks,
                                                          const std::shared_ptr<const xccl::Library>& library,
                                                          Liveness& liveness) {
  std::vector<std::unique_ptr<Fabric>> fabrics;
  for (int r = 0; r < ranks; ++r) fabrics.push_back(std::make_unique<LibraryFabric>(r, library, liveness));
  return fabrics;
}

}  // namespace perseus::testing
