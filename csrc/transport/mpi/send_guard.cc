#include "transport/mpi/send_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/log.h"

namespace perseus::mpi {
namespace {

constexpr std::chrono::seconds kLossReportTimeout{3};
constexpr std::chrono::milliseconds kLossPollInterval{20};

}  // namespace

SendGuard::Call::Call(SendGuard* sends) : sends_(sends) {
  if (sends_ == nullptr) return;
  ++sends_->inside_;
  const auto status = sends_->status();
  if (status.ok()) return;
  --sends_->inside_;
  status.throw_if_failed();
}

SendGuard::Call::~Call() {
  if (sends_ != nullptr) --sends_->inside_;
}

Status SendGuard::status() const {
  if (!lost_) return {};
  const std::scoped_lock lock(mutex_);
  return {ErrorKind::peer_lost, text_};
}

void SendGuard::lose(const std::string& text) {
  {
    const std::scoped_lock lock(mutex_);
    if (lost_) return;
    text_ = text;
    lost_ = true;
  }
  std::thread([this] { watch(); }).detach();
}

void SendGuard::watch() {
  pthread_setname_np(pthread_self(), "perseus-end");
  const auto deadline = std::chrono::steady_clock::now() + kLossReportTimeout;
  while (inside_ > 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      log(LogLevel::error, text_ + "; ending this process, because a send to that rank does not return from MPI");
      _exit(1);
    }
    std::this_thread::sleep_for(kLossPollInterval);
  }
}

}  // namespace perseus::mpi
