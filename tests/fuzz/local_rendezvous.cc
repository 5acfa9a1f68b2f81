// Fuzzes both ends of the rendezvous connections of a host: a peer of rank 0, and a peer of rank 1.
#include "bootstrap/local/local_rendezvous.h"

#include <thread>

#include "base/error.h"
#include "fuzz_peer.h"

using namespace perseus;

namespace {

// Runs a rendezvous that exchanges bytes and descriptors, or fails with an Error.
void run_rank(const std::string& address, int rank) {
  try {
    LocalRendezvous rendezvous(address, rank, 2, kFuzzPatience);
    rendezvous.allgather("hello");
    rendezvous.exchange_fds(0);
  } catch (const Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const int rank = input.below(2);
  const auto address = random_rendezvous_address();
  UniqueFd listener = rank == 1 ? listen_on(socket_name(address)) : UniqueFd();
  std::thread job(run_rank, address, rank);
  const auto deadline = fuzz_deadline();
  UniqueFd peer;
  while (!peer && std::chrono::steady_clock::now() < deadline) {
    peer = rank == 1 ? accept_from(listener.get()) : connect_to(socket_name(address));
  }
  if (peer) {
    const auto end = rank == 1 ? Handshake::End::listening : Handshake::End::connecting;
    play(peer.get(), end, address, input);
  }
  job.join();
  return 0;
}
