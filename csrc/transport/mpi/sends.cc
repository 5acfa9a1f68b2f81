#include "transport/mpi/sends.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace perseus::mpi {
namespace {

constexpr std::chrono::seconds kPatience{3};
constexpr std::chrono::milliseconds kLook{20};

}  // namespace

Sends::Call::Call(Sends* sends) : sends_(sends) {
  if (sends_ == nullptr) return;
  ++sends_->inside_;
  const auto status = sends_->status();
  if (status.ok()) return;
  --sends_->inside_;
  status.throw_if_failed();
}

Sends::Call::~Call() {
  if (sends_ != nullptr) --sends_->inside_;
}

Status Sends::status() const {
  if (!lost_) return {};
  const std::scoped_lock lock(mutex_);
  return {ErrorKind::peer_lost, text_};
}

void Sends::lose(const std::string& text) {
  {
    const std::scoped_lock lock(mutex_);
    if (lost_) return;
    text_ = text;
    lost_ = true;
  }
  std::thread([this] { watch(); }).detach();
}

void Sends::watch() {
  pthread_setname_np(pthread_self(), "perseus-end");
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (inside_ > 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      log(LogLevel::error, text_ + "; this process ends, as MPI does not come back from a message to that rank");
      _exit(1);
    }
    std::this_thread::sleep_for(kLook);
  }
}

}  // namespace perseus::mpi
