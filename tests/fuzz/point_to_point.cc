// Fuzzes the receiving side of point-to-point messages: announcements, parts, acknowledgements and refusals.
#include "engine/point_to_point.h"

#include <array>
#include <memory>

#include "base/error.h"
#include "fuzz_input.h"

using namespace perseus;

namespace {

// A channel that accepts every message, and finds the data of a peer in an array of 64 bytes.
class Channel final : public ControlChannel {
 public:
  int rank() const override { return 0; }
  int size() const override { return 3; }
  void send(int, std::string) override {}
  bool receive(ControlMessage&) override { return false; }
  const void* find(int, std::uint64_t place, std::size_t bytes) override {
    return place < laid_out_.size() && bytes <= laid_out_.size() - place ? laid_out_.data() + place : nullptr;
  }
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return true; }

 private:
  std::array<char, 64> laid_out_{};
  Doorbell doorbell_;
};

void post(PointToPoint& messages, std::vector<std::uint8_t>& data, bool outgoing, int peer, std::int64_t tag) {
  auto message = std::make_shared<PointToPointOp>();
  message->outgoing = outgoing;
  message->peer = peer;
  message->tag = tag;
  message->data = data.data();
  message->count = static_cast<std::int64_t>(data.size());
  messages.post(std::move(message));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  const std::vector<int> world_ranks{0, 1, 2};
  std::array<std::vector<std::uint8_t>, 4> memory;
  for (auto& each : memory) each.resize(16);
  memory[3].resize(8192);
  Channel channel;
  PointToPoint messages(channel, world_ranks);
  try {
    post(messages, memory[0], false, 1, 0);
    post(messages, memory[1], false, PointToPointOp::kAnybody, 1);
    post(messages, memory[3], true, 2, 0);
    messages.make_progress();
    while (!input.empty()) {
      const int from = input.below(3);
      auto bytes = input.text();
      if (PointToPoint::is_point_to_point(bytes)) messages.receive(from, std::move(bytes));
      if (input.below(8) == 0) post(messages, memory[2], false, from, input.below(4));
      messages.make_progress();
    }
  } catch (const Error&) {
  }
  messages.close(Status(ErrorKind::shut_down, "the target ends"));
  messages.fail(Status(ErrorKind::shut_down, "the target ends"));
  return 0;
}
