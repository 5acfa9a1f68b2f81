// Fuzzes both ends of the TCP connections between hosts: a peer of rank 0, and a peer that rank 1 connects to.
#include "bootstrap/host_rendezvous.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <sstream>
#include <thread>

#include "base/error.h"
#include "fuzz_peer.h"

using namespace perseus;

namespace {

constexpr auto kSecret = "secret-of-the-fuzzer";  // must be one word, because the text of rank 0 is split at spaces

sockaddr_in loopback(int port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<std::uint16_t>(port));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return name;
}

// Acts as the bootstrap of rank 0 or rank 1. For rank 0, it starts the fuzzer's peer with the address and the secret
// that rank 0 sends to the others. For rank 1, it returns `words` as the text of rank 0.
class FuzzBootstrap final : public Bootstrap {
 public:
  FuzzBootstrap(int rank, std::string words) : rank_(rank), words_(std::move(words)) {}
  std::string_view name() const override { return "fuzz"; }
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::vector<std::string> allgather(std::string_view mine) override {
    if (rank_ != 0) return {words_, std::string(mine)};
    std::string secret, address;
    int port = 0;
    std::istringstream(std::string(mine)) >> port >> secret >> address >> port;
    peer = std::thread([this, secret, port] { connect_as_peer(secret, port); });
    return {std::string(mine), ""};
  }

  std::thread peer;
  FuzzInput* input = nullptr;

 private:
  void connect_as_peer(const std::string& secret, int port) {
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto name = loopback(port);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) return;
    play(socket.get(), Handshake::End::connecting, secret, *input);
  }

  int rank_;
  std::string words_;
};

void meet(FuzzBootstrap& bootstrap) {
  HeartbeatOptions options;
  options.interfaces = "lo";
  options.patience = kFuzzPatience;
  try {
    connect_hosts(bootstrap, {0, 1}, {"a", "b"}, options);
  } catch (const Error&) {
  }
}

void fuzz_rank_0(FuzzInput& input) {
  FuzzBootstrap bootstrap(0, "");
  bootstrap.input = &input;
  meet(bootstrap);
  if (bootstrap.peer.joinable()) bootstrap.peer.join();
}

void fuzz_rank_1(FuzzInput& input) {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  auto name = loopback(0);
  socklen_t length = sizeof name;
  auto* plain = reinterpret_cast<sockaddr*>(&name);
  if (bind(listener.get(), plain, length) != 0 || listen(listener.get(), 4) != 0) return;
  if (getsockname(listener.get(), plain, &length) != 0) return;
  std::thread peer([&] {
    if (!wait_readable(listener.get(), fuzz_deadline())) return;
    const UniqueFd socket(accept(listener.get(), nullptr, nullptr));
    play(socket.get(), Handshake::End::listening, kSecret, input);
  });
  std::ostringstream words;
  words << "30 " << kSecret << " 127.0.0.1 " << ntohs(name.sin_port);
  FuzzBootstrap bootstrap(1, words.str());
  meet(bootstrap);
  peer.join();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  if (input.below(2) == 0) {
    fuzz_rank_0(input);
  } else {
    fuzz_rank_1(input);
  }
  return 0;
}
