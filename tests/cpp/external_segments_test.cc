// Tests shared memory that another library has made: how its file is found, and how ranks of a host reach it.
#include "transport/shm/memory/external_segments.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "shared_file.h"
#include "transport_world.h"

namespace perseus::testing {
namespace {

constexpr std::size_t kBytes = 1 << 20;
constexpr std::int64_t kCount = 50'000;
constexpr std::array kBoth = {0, 1};

// Two ranks in one process.
class ExternalSegmentsTest : public ::testing::Test {
 protected:
  ExternalSegmentsTest() {
    std::array pairs = {new_datagram_pair(), new_datagram_pair()};
    for (std::size_t r = 0; r < pairs.size(); ++r) {
      shm::Inboxes inboxes{std::move(pairs[r].receiver), {}};
      for (const auto& pair : pairs) inboxes.senders.emplace_back(fcntl(pair.sender.get(), F_DUPFD_CLOEXEC, 0));
      ranks_[r] = std::make_shared<shm::ExternalSegments>(std::move(inboxes), static_cast<int>(r));
    }
  }

  shm::ExternalSegments& owner() { return *ranks_[0]; }
  shm::ExternalSegments& peer() { return *ranks_[1]; }
  std::optional<shm::Place> find(const SharedFile& file) { return owner().find(file.data(), file.bytes(), kBoth); }
  // Returns the place that the peer has confirmed.
  std::optional<shm::Place> confirmed(const SharedFile& file) {
    EXPECT_FALSE(find(file).has_value()) << "the peer cannot have mapped it yet";
    peer().receive();
    return find(file);
  }

 private:
  std::array<std::shared_ptr<shm::ExternalSegments>, 2> ranks_;
};

TEST_F(ExternalSegmentsTest, PeersReachConfirmedMemory) {
  const SharedFile file(kBytes);
  const auto registration = owner().add(file.data(), file.bytes());
  const auto before = owner().changes();
  const auto place = confirmed(file);
  ASSERT_TRUE(place.has_value());
  EXPECT_GT(owner().changes(), before) << "the changed number tells the peer to receive";

  const auto there = peer().at(0, *place, kBytes);
  ASSERT_NE(there, nullptr);
  EXPECT_NE(there.get(), file.data());
  file.data()[kBytes - 1] = std::byte{1};
  EXPECT_EQ(there.get()[kBytes - 1], std::byte{1});
  there.get()[0] = std::byte{2};
  EXPECT_EQ(file.data()[0], std::byte{2});
  EXPECT_EQ(owner().at(0, *place, kBytes).get(), file.data());

  const auto inside = owner().find(file.data() + 5000, 100, kBoth);
  ASSERT_TRUE(inside.has_value());
  EXPECT_EQ(peer().at(0, *inside, 100).get(), there.get() + 5000);
  EXPECT_EQ(owner().find(file.data() + 5000, kBytes, kBoth), std::nullopt);
}

TEST_F(ExternalSegmentsTest, ReleasedMemoryIsUnmappedWhenItIsNoLongerUsed) {
  const SharedFile file(kBytes);
  auto registration = owner().add(file.data(), file.bytes());
  const auto place = confirmed(file);
  ASSERT_TRUE(place.has_value());
  auto in_use = peer().at(0, *place, kBytes);
  registration.reset();
  EXPECT_FALSE(find(file).has_value());
  peer().receive();
  EXPECT_EQ(peer().at(0, *place, kBytes), nullptr);
  file.data()[7] = std::byte{3};
  EXPECT_EQ(in_use.get()[7], std::byte{3});
}

TEST_F(ExternalSegmentsTest, PlacesOutsideASegmentAreNotReached) {
  const SharedFile file(kBytes);
  const auto registration = owner().add(file.data(), file.bytes());
  const auto place = confirmed(file);
  ASSERT_TRUE(place.has_value());
  for (auto* rank : {&owner(), &peer()}) {
    EXPECT_EQ(rank->at(0, {place->segment, 1}, kBytes), nullptr);
    EXPECT_EQ(rank->at(0, {place->segment, UINT64_MAX}, 2), nullptr);
    EXPECT_EQ(rank->at(0, {place->segment, 2}, UINT64_MAX), nullptr);
    EXPECT_EQ(rank->at(0, {place->segment + 1, 0}, 1), nullptr);
    EXPECT_EQ(rank->at(1, *place, 1), nullptr);
  }
}

TEST_F(ExternalSegmentsTest, MemoryThatAPeerCannotMapIsNeverReached) {
  const SharedFile file(kBytes);
  const auto registration = owner().add(file.data(), file.bytes());
  EXPECT_FALSE(find(file).has_value());
  ASSERT_EQ(ftruncate(file.fd(), 0), 0);
  peer().receive();
  EXPECT_FALSE(find(file).has_value());
}

TEST_F(ExternalSegmentsTest, AFullInboxOnlyDelays) {
  // An inbox has room for a few hundred messages.
  std::vector<std::unique_ptr<SharedFile>> files;
  std::vector<std::shared_ptr<void>> registrations;
  for (int i = 0; i < 600; ++i) {
    files.push_back(std::make_unique<SharedFile>(4096));
    registrations.push_back(owner().add(files.back()->data(), 4096));
    EXPECT_FALSE(find(*files.back()).has_value());
  }
  for (int round = 0; round < 10; ++round) {
    peer().receive();
    for (const auto& file : files) static_cast<void>(find(*file));
  }
  for (const auto& file : files) EXPECT_TRUE(find(*file).has_value());
}

TEST_F(ExternalSegmentsTest, OtherMemoryIsRefusedWithTheReason) {
  const auto why = [&](const void* data, std::size_t bytes) -> std::string {
    try {
      static_cast<void>(owner().add(data, bytes));
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::unavailable);
      return error.what();
    }
    return "";
  };
  const std::vector<std::byte> heap(kBytes);
  EXPECT_NE(why(heap.data(), kBytes).find("not a writable mapping"), std::string::npos);

  const SharedFile file(kBytes);
  void* read_only = mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, file.fd(), 0);
  EXPECT_NE(why(read_only, kBytes).find("not a writable mapping"), std::string::npos);
  munmap(read_only, kBytes);

  EXPECT_NE(why(file.data(), kBytes + 1), "");
  const auto registration = owner().add(file.data(), kBytes);
  EXPECT_NE(why(file.data(), kBytes).find("already"), std::string::npos);
}

TEST(MappedFile, IsFoundByItsPathIfItsDescriptorIsClosed) {
  const auto path = "/dev/shm/perseus-test-" + std::to_string(getpid());
  const int fd = open(path.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 3 * kBytes), 0);
  auto* memory = static_cast<std::byte*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, kBytes));
  ASSERT_NE(memory, MAP_FAILED);
  const auto check = [&] {
    const auto file = shm::find_mapped_file(memory + 10, 100);
    EXPECT_EQ(file.begin, memory);
    EXPECT_EQ(file.offset, kBytes);
    EXPECT_EQ(file.bytes, 110U);
  };
  check();
  close(fd);
  check();
  std::filesystem::remove(path);
  EXPECT_THROW(static_cast<void>(shm::find_mapped_file(memory, 1)), Error) << "neither path nor descriptor is left";
  munmap(memory, kBytes);
}

int mappings_named(const std::string& name) {
  std::ifstream maps("/proc/self/maps");
  int count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find(name) != std::string::npos ? 1 : 0;
  return count;
}

// In the first round a segment is offered, in the second it is confirmed, and later rounds reach it.
TEST(ShmGroup, CollectivesReachMemoryOfAnotherLibrary) {
  for (const int size : {2, 3}) {
    run_world(Ranks::processes, size, [](World& world) {
      const auto link = world.connect_all();
      const auto total = kCount * world.size;
      SharedFile in(static_cast<std::size_t>(total) * sizeof(float)), out(in.bytes());
      auto* const from = reinterpret_cast<float*>(in.data());
      auto* const to = reinterpret_cast<float*>(out.data());
      std::vector<std::shared_ptr<void>> registrations;
      for (auto* file : {&in, &out}) {
        registrations.push_back(world.fabric.register_shared_memory(file->data(), file->bytes()));
      }
      const std::vector<std::int64_t> each(static_cast<std::size_t>(world.size), kCount);
      const std::vector<std::int64_t> bytes(static_cast<std::size_t>(world.size), kCount * 4);
      const auto sum = static_cast<float>(world.size * (world.size + 1)) / 2;
      const auto all_are = [&](const float* data, std::int64_t count, float value) {
        return std::all_of(data, data + count, [value](float element) { return element == value; });
      };
      for (int round = 0; round < 4; ++round) {
        const auto mine = static_cast<float>(world.rank + 1);
        std::fill_n(from, total, mine);
        const Piece source{from, total}, target{to, total};
        ASSERT_TRUE(link.transport->allreduce({}, {&source, 1}, {&target, 1}).ok());
        ASSERT_TRUE(all_are(to, total, sum)) << round;
        ASSERT_TRUE(link.transport->allreduce({}, {&target, 1}, {&target, 1}).ok());
        ASSERT_TRUE(all_are(to, total, sum * static_cast<float>(world.size))) << round;
        ASSERT_TRUE(link.transport->reduce_scatter({}, from, to, each).ok());
        ASSERT_TRUE(all_are(to, kCount, sum)) << round;
        ASSERT_TRUE(link.transport->alltoall(from, bytes, to, bytes).ok());
        for (int r = 0; r < world.size; ++r) {
          ASSERT_TRUE(all_are(to + r * kCount, kCount, static_cast<float>(r + 1))) << round;
        }
        ASSERT_TRUE(link.transport->allgather(from, to, bytes).ok());
        for (int r = 0; r < world.size; ++r) {
          ASSERT_TRUE(all_are(to + r * kCount, kCount, static_cast<float>(r + 1))) << round;
        }
        ASSERT_TRUE(all_are(from, total, mine)) << round;
        const Piece whole{from, total * 4};  // in bytes
        ASSERT_TRUE(link.transport->broadcast({&whole, 1}, round % world.size).ok());
        ASSERT_TRUE(all_are(from, total, static_cast<float>(round % world.size + 1))) << round;
      }
      EXPECT_EQ(mappings_named("a-framework"), 2 * world.size) << "each rank maps the files of all";
      world.exchange("");
      registrations.clear();
      world.exchange("");
      std::vector<float> heap(static_cast<std::size_t>(kCount), 1);
      const Piece piece{heap.data(), kCount};
      ASSERT_TRUE(link.transport->allreduce({}, {&piece, 1}, {&piece, 1}).ok());
      EXPECT_EQ(mappings_named("a-framework"), 2) << "the next collective unmaps what was released";
    });
  }
}

}  // namespace
}  // namespace perseus::testing
