#include "transport/mpi/pmi_server.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "base/config.h"
#include "base/environment.h"
#include "base/error.h"
#include "base/thread.h"

namespace perseus::mpi {
namespace {

constexpr std::size_t kLongestLine = 65536;
constexpr std::chrono::milliseconds kPollInterval{50};  // the interval at which a wait checks for lost ranks

// Changes variables of this process; the destructor restores them.
class Variables {
 public:
  Variables() = default;
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (auto it = before_.rbegin(); it != before_.rend(); ++it) set_environment(it->first, it->second);
  }

  // Removes the variable if there is no value.
  void set(const std::string& name, const std::optional<std::string>& value) {
    before_.emplace_back(name, environment(name));
    set_environment(name, value);
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

// Returns the variables of outer launchers: torchrun may itself have been started by an mpirun or srun.
std::vector<std::string> launchers_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    for (const std::string_view prefix :
         {"PMI_", "PMIX_", "PMI2_", "HYDI_", "HYDRA_", "MPI_LOCAL", "I_MPI_HYDRA_", "I_MPI_PMI_", "I_MPI_INFO_"}) {
      if (text.starts_with(prefix)) names.emplace_back(text.substr(0, text.find('=')));
    }
  }
  return names;
}

}  // namespace

PmiServer::PmiServer(int rank, const std::vector<int>& hosts, const std::string& world, PmiAnswers::Exchange exchange)
    : rank_(rank),
      size_(static_cast<int>(hosts.size())),
      answers_(hosts, world + '-' + std::to_string(hosts[static_cast<std::size_t>(rank)]),
               [this](std::string_view mine) { return this->exchange(mine); }),
      exchange_(std::move(exchange)) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(ErrorKind::transport, "cannot make a pair of sockets: error " + std::to_string(errno));
  }
  ours_.reset(ends[0]);
  theirs_.reset(ends[1]);
  thread_ = start_thread([this] { serve(); });
}

PmiServer::~PmiServer() {
  shutdown(ours_.get(), SHUT_RDWR);
  thread_.join();
}

void PmiServer::run(const std::function<void()>& initialize, std::chrono::milliseconds limit,
                    const Liveness* liveness) {
  Variables variables;
  for (const auto& name : launchers_variables()) variables.set(name, std::nullopt);
  variables.set("PMI_FD", std::to_string(theirs_.get()));
  variables.set("PMI_RANK", std::to_string(rank_));
  variables.set("PMI_SIZE", std::to_string(size_));
  variables.set("MPIR_CVAR_PMI_VERSION", "1");
  variables.set("MPIR_CVAR_PMI_DISABLE_GROUP", "1");
  // MPI_Init runs on its own thread, because it cannot be interrupted if a rank never comes.
  start_thread([this, initialize] {
    pthread_setname_np(pthread_self(), "perseus-start");
    std::exception_ptr failure;
    try {
      initialize();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    has_run_ = true;
    failure_ = failure;
    changed_.notify_all();
  }).detach();
  wait(limit, liveness);
}

void PmiServer::wait(std::chrono::milliseconds limit, const Liveness* liveness) {
  using Clock = std::chrono::steady_clock;
  std::exception_ptr failure;
  Status lost;
  PmiAnswers::Exchange exchange;  // destroyed outside the lock
  {
    std::unique_lock lock(mutex_);
    auto deadline = Clock::now() + limit;
    for (bool stands_still = false; !has_run_ && !failure_ && !stands_still && lost.ok();) {
      const int before = steps_;
      const auto moves = [&] { return has_run_ || failure_ || steps_ != before; };
      if (changed_.wait_until(lock, std::min(deadline, Clock::now() + kPollInterval), moves) || in_exchange_) {
        deadline = Clock::now() + limit;
        continue;
      }
      stands_still = Clock::now() >= deadline;
      if (liveness != nullptr) lost = liveness->status();
    }
    given_up_ = !has_run_;
    failure = failure_;
    exchange.swap(exchange_);
  }
  if (failure) std::rethrow_exception(failure);
  if (!given_up_) return;
  lost.throw_if_failed();
  throw Error(ErrorKind::timed_out,
              "MPI_Init of rank " + std::to_string(rank_) + " has made no progress for " +
                  std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limit).count()) +
                  " s (PERSEUS_START_TIMEOUT). Check that all ranks run and that their hosts reach each other over the "
                  "network that MPI has chosen; FI_TCP_IFACE selects another interface");
}

std::vector<std::string> PmiServer::exchange(std::string_view mine) {
  PmiAnswers::Exchange exchange;
  {
    const std::scoped_lock lock(mutex_);
    if (!exchange_) return {};
    exchange = exchange_;
    in_exchange_ = true;
  }
  return exchange(mine);
}

// Returns false once MPI gets no answers any more.
bool PmiServer::answer(std::string_view line) {
  std::optional<std::string> answer;
  std::exception_ptr failure;
  try {
    answer = answers_.answer(line);
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::scoped_lock lock(mutex_);
    in_exchange_ = false;
    ++steps_;
    if (failure) {
      given_up_ = true;
      failure_ = failure;
    }
    changed_.notify_all();
    if (given_up_) return false;
  }
  if (!answer) return true;
  const auto bytes = *answer + '\n';
  return send_all(ours_.get(), bytes.data(), bytes.size(), Deadline::max()) == IoResult::ok;
}

void PmiServer::serve() {
  pthread_setname_np(pthread_self(), "perseus-pmi");
  std::string text;
  std::array<char, 4096> bytes{};
  bool answers = true;
  for (;;) {
    const auto count = read(ours_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    text.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = 0; (end = text.find('\n')) != std::string::npos; text.erase(0, end + 1)) {
      if (answers) answers = answer(std::string_view(text).substr(0, end));
    }
    if (text.size() > kLongestLine) return;
  }
}

}  // namespace perseus::mpi
