#include "transport_world.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <barrier>
#include <exception>
#include <future>
#include <iostream>
#include <numeric>
#include <thread>

#include "bootstrap/local/local.h"
#include "bootstrap/local/local_rendezvous.h"
#include "hierarchy_world.h"
#include "mpi_fake.h"
#include "transport/self/fabric.h"
#include "transport/shm/fabric.h"
#include "xccl_fake.h"

namespace perseus::testing {

namespace {

constexpr unsigned kPatienceSeconds = 3000;  // ends a hang, and nothing else

void guarded(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw: " << error.what();
  }
}

using Fabrics = std::vector<std::unique_ptr<Fabric>>;

Fabrics make_shared_memory(int size, Liveness& liveness, const FabricOptions& options) {
  Fabrics fabrics;
  if (size == 1) {
    fabrics.push_back(std::make_unique<self::SelfFabric>());
    return fabrics;
  }
  constexpr std::size_t kArenaBytes = std::size_t{256} << 20;
  constexpr std::size_t kChunkBytes = 128 * 1024;
  shm::Segments segments;
  std::vector<DatagramPair> sockets;
  for (int r = 0; r < size; ++r) {
    const auto bytes = options.arena_bytes != 0 ? options.arena_bytes : kArenaBytes;
    segments.push_back(std::make_shared<shm::Segment>(shm::Segment::create(bytes)));
    sockets.push_back(new_datagram_pair());
  }
  for (int r = 0; r < size; ++r) {
    shm::HostPlan plan;
    plan.ranks.resize(static_cast<std::size_t>(size));
    std::iota(plan.ranks.begin(), plan.ranks.end(), 0);
    plan.local_rank = r;
    plan.chunk_bytes = options.chunk_bytes != 0 ? options.chunk_bytes : kChunkBytes;
    plan.headroom = options.tunable ? 4 : 1;
    plan.spin = options.spin;
    plan.crowded = true;
    shm::Inboxes inboxes{std::move(sockets[static_cast<std::size_t>(r)].receiver), {}};
    for (const auto& pair : sockets) inboxes.senders.emplace_back(fcntl(pair.sender.get(), F_DUPFD_CLOEXEC, 0));
    fabrics.push_back(std::make_unique<shm::ShmFabric>(segments, std::move(inboxes), std::move(plan), liveness));
  }
  return fabrics;
}

Fabrics make_threads(Ranks kind, int size, Liveness& liveness, const FabricOptions& options) {
  if (kind == Ranks::threads) return make_shared_memory(size, liveness, options);
  if (kind == Ranks::blocking) return make_library_fabrics(size, blocking_library(), liveness);
  if (kind == Ranks::queued || kind == Ranks::background) {
    return make_library_fabrics(size, queued_library(kind == Ranks::background), liveness);
  }
  auto messages = make_message_fabrics(size, liveness, kind == Ranks::hosts_with_outboxes);
  if (kind == Ranks::messages) return messages;
  return make_hosts(crossed_hosts(size), make_shared_memory(size, liveness, options), std::move(messages));
}

void run_threads(Ranks kind, int size, const Body& body, const FabricOptions& options) {
  alarm(kPatienceSeconds);
  Liveness liveness;
  const auto fabrics = make_threads(kind, size, liveness, options);
  std::barrier gate(size);
  std::vector<std::string> notes(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      const auto exchange = [&, r](std::string_view mine) {
        notes[static_cast<std::size_t>(r)] = mine;
        gate.arrive_and_wait();
        auto all = notes;
        gate.arrive_and_wait();
        return all;
      };
      World world{r, size, *fabrics[static_cast<std::size_t>(r)], exchange, liveness};
      guarded([&] { body(world); });
    });
  }
  for (auto& thread : threads) thread.join();
  alarm(0);
}

void run_processes(int size, const Body& body, const FabricOptions& options) {
  const auto address = random_rendezvous_address();
  fork_ranks(size, [&](int r) {
    LocalBootstrap bootstrap({.rank = r, .size = size, .address = address});
    Liveness liveness;
    const auto topology = Topology::discover(bootstrap);
    const auto fabric = make_fabric(bootstrap, topology, liveness, options);
    World world{r, size, *fabric, [&](std::string_view mine) { return bootstrap.allgather(mine); }, liveness};
    body(world);
    fabric->announce_shutdown();
  });
}

}  // namespace

Link World::connect_all() {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return connect(members);
}

FabricOptions small_options() {
  FabricOptions options;
  options.arena_bytes = std::size_t{128} << 20;
  options.chunk_bytes = 16 * 1024;
  return options;
}

void run_world(Ranks kind, int size, const Body& body, const FabricOptions& options) {
  if (kind == Ranks::processes) {
    run_processes(size, body, options);
  } else {
    run_threads(kind, size, body, options);
  }
}

int fork_rank(const std::function<void()>& body) {
  std::cout.flush();
  std::cerr.flush();
  const int pid = fork();
  if (pid != 0) return pid;
  alarm(kPatienceSeconds);
  guarded(body);
  std::cout.flush();
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

bool ended_well(int pid) {
  int status = -1;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

void fork_ranks(int size, const std::function<void(int rank)>& body) {
  std::vector<int> children;
  for (int r = 0; r < size; ++r) children.push_back(fork_rank([&] { body(r); }));
  for (const int child : children) EXPECT_TRUE(ended_well(child));
}

std::string wait_for_loss(Liveness& liveness) {
  std::promise<void> lost;
  liveness.on_lost([&] { lost.set_value(); });
  if (lost.get_future().wait_for(std::chrono::seconds(20)) != std::future_status::ready) return "no rank was lost";
  return liveness.status().text();
}

}  // namespace perseus::testing
