// Fuzzes the thread that reads the liveness connections between ranks, over a socket pair.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "bootstrap/watch/watch.h"
#include "fuzz_input.h"

using namespace perseus;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return -1;
  const UniqueFd peer(sockets[1]);
  Liveness liveness;
  liveness.name_hosts({"a", "b"});
  std::vector<Watch::Peer> peers;
  peers.push_back({1, UniqueFd(sockets[0])});
  std::string received;
  Watch watch(std::move(peers), /*forwards=*/true, liveness, "fuzz");
  watch.listen([&](int, std::string_view words) { received = words; });
  FuzzInput input(data, size);
  const auto bytes = input.rest();
  send(peer.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  // The destructor joins the thread, which handles what it has read before it checks whether to stop.
  for (int unread = 1; unread != 0;) {
    if (ioctl(peer.get(), SIOCOUTQ, &unread) != 0) return -1;
  }
  return 0;
}
