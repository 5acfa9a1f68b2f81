// The control channel of a group over MPI: nothing rings here, so the engine looks from time to time.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "transport/control_channel.h"
#include "transport/mpi/post.h"

namespace perseus::mpi {

class MpiChannel final : public ControlChannel {
 public:
  // Owns `comm`, and leaves it to `retired` when it goes.
  MpiChannel(Api& api, Comm comm, const WaitOptions& options, Retired& retired)
      : api_(api), liveness_(options.liveness), retired_(retired), post_(std::make_unique<Post>(api, comm, options)) {}
  ~MpiChannel() override;

  int rank() const override { return post_->rank(); }
  int size() const override { return post_->size(); }
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override { return post_->keeps_for(to); }
  bool keeps_any() const override { return post_->keeps_any(); }
  bool receive(ControlMessage& message) override;
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return true; }

 private:
  void close();

  Api& api_;
  const Liveness* liveness_;
  Retired& retired_;
  std::unique_ptr<Post> post_;
  std::deque<ControlMessage> to_self_;
  Doorbell doorbell_;
};

}  // namespace perseus::mpi
