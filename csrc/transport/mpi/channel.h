// Control messages over MPI point-to-point: nothing rings here, so the engine looks from time to time.
#pragma once

#include <deque>
#include <list>
#include <string>

#include "transport/control_channel.h"
#include "transport/mpi/communicator.h"

namespace perseus::mpi {

class MpiChannel final : public ControlChannel {
 public:
  // Owns `comm`.
  MpiChannel(Api& api, Comm comm, const WaitOptions& options) : communicator_(api, comm, options) {}
  ~MpiChannel() override;

  int rank() const override { return communicator_.rank(); }
  int size() const override { return communicator_.size(); }
  void send(int to, std::string bytes) override;
  bool keeps_for(int to) const override;
  bool receive(ControlMessage& message) override;
  Doorbell& doorbell() override { return doorbell_; }
  bool needs_polling() const override { return true; }

 private:
  // Members go in reverse order: messages are given up before their memory goes.
  struct Parcel {
    explicit Parcel(Communicator& communicator) : messages(communicator) {}
    ControlMessage content;  // of one that leaves, `from` is whom it goes to
    Messages messages;
  };

  void let_finished_go();
  void accept_arrivals();

  Communicator communicator_;
  std::deque<ControlMessage> to_self_;
  std::list<Parcel> leaving_;   // all of them may finish in any order
  std::list<Parcel> arriving_;  // handed out in the order of their arrival
  Doorbell doorbell_;
};

}  // namespace perseus::mpi
