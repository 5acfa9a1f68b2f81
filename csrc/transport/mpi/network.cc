#include "transport/mpi/network.h"

#include <utility>

namespace perseus::mpi {
namespace {

class MpiNetwork final : public messages::PolledNetwork {
 public:
  MpiNetwork(Api& api, std::vector<Comm> streams, SendGuard* sends)
      : api_(api),
        streams_(std::move(streams)),
        sends_(sends),
        rank_(api.rank(streams_.front())),
        size_(api.size(streams_.front())) {}

  std::string_view name() const override { return "MPI"; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int streams() const override { return static_cast<int>(streams_.size()); }

  Request send(int stream, const void* data, std::size_t bytes, int to, int tag) override {
    const SendGuard::Call call(sends_);
    return api_.send(comm(stream), data, static_cast<int>(bytes), to, tag);
  }
  Request send_until_received(int stream, const void* data, std::size_t bytes, int to, int tag) override {
    const SendGuard::Call call(sends_);
    return api_.send_until_received(comm(stream), data, static_cast<int>(bytes), to, tag);
  }
  Request receive(int stream, void* data, std::size_t bytes, int from, int tag) override {
    return api_.receive(comm(stream), data, static_cast<int>(bytes), from, tag);
  }
  bool test(Request& request) override { return api_.test(request); }
  bool abandon(Request& request, bool receiving) override { return api_.abandon(request, receiving); }
  bool probe(int tag, Arrival& arrival) override { return api_.probe(comm(0), tag, arrival); }

  bool has_ended() override { return api_.finalized(); }
  void close() override {
    for (const auto comm : streams_) api_.free(comm);
  }

 private:
  Comm comm(int stream) const { return streams_[static_cast<std::size_t>(stream)]; }

  Api& api_;
  std::vector<Comm> streams_;
  SendGuard* sends_;
  int rank_, size_;
};

}  // namespace

std::unique_ptr<messages::PolledNetwork> make_network(Api& api, std::vector<Comm> streams, SendGuard* sends) {
  return std::make_unique<MpiNetwork>(api, std::move(streams), sends);
}

}  // namespace perseus::mpi
