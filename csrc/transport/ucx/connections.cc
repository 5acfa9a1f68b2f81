#include "transport/ucx/connections.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/config.h"
#include "base/error.h"
#include "base/wait/thread.h"

namespace perseus::ucx {
namespace {

using Clock = std::chrono::steady_clock;

constexpr WireTag kControl = WireTag{1} << 63;
constexpr WireTag kWholeTag = ~WireTag{0};
constexpr int kLongestTurn = 64;  // steps of a worker's progress for which its mutex is held at most
constexpr std::chrono::milliseconds kCloseGrace{5000};  // for what is in flight at the end, on a busy machine
constexpr int kCloseLookMs = 10;
// UCX's own thread may receive a message without an event, so an idle thread looks now and then.
constexpr std::chrono::milliseconds kFirstLook{1000}, kLongestLook{30'000};
constexpr std::size_t kLengthBytes = 4;

WireTag wire_tag(const Address& address) {
  return (address.tag == 0 ? kControl : 0) | address.group << (kRankBits + kTagBits) |
         static_cast<WireTag>(address.from) << kTagBits | static_cast<WireTag>(address.tag);
}

std::uint64_t group_of(WireTag tag) { return (tag & ~kControl) >> (kRankBits + kTagBits); }

int sender_of(WireTag tag) { return static_cast<int>(tag >> kTagBits & ((1U << kRankBits) - 1)); }

// UCX returns a request, or the status of a call that has ended.
bool is_request(const void* value) { return reinterpret_cast<std::intptr_t>(value) > 0; }
Status status_of(const void* value) { return static_cast<Status>(reinterpret_cast<std::intptr_t>(value)); }

// Sets an option of UCX unless the user has.
void configure(const Library& library, void* config, const char* name, const char* value) {
  if (environment(std::string("UCX_") + name)) return;
  library.check(library.call.config_modify(config, name, value), "ucp_config_modify");
}

}  // namespace

struct Connections::Stream {
  std::mutex mutex;  // guards the worker and the rest
  Worker worker = nullptr;
  int descriptor = -1;
  std::string address;
  // UCX calls back with the peer's entry, so entries keep their place.
  struct Peer {
    Endpoint endpoint = nullptr;
    Status status = kOk;
  };
  std::map<int, Peer> peers;  // by world rank
  Connections* owner = nullptr;
};

// The state of a request, in memory that UCX keeps in front of its own.
struct Connections::Posted {
  std::atomic<Status> status;
  int peer;
  Stream* stream;
  Doorbell* waiter;  // null: abandoned
};

void Connections::prepare(void* request) {
  auto* posted = new (request) Posted{};
  posted->status.store(kInProgress, std::memory_order_relaxed);
}

// UCX calls it within a call for the stream's worker, whose mutex is held.
void Connections::ended(void* request, Status status) {
  auto* posted = static_cast<Posted*>(request);
  auto* waiter = posted->waiter;
  if (waiter == nullptr) {
    const auto& call = posted->stream->owner->library_.call;
    prepare(request);
    call.request_free(request);
    return;
  }
  posted->status.store(status, std::memory_order_release);
  waiter->notify();
  if (posted->stream->owner->sleeping_.load(std::memory_order_seq_cst) == waiter) posted->stream->owner->wake();
}

void Connections::failed(void* argument, Endpoint /*endpoint*/, Status status) {
  static_cast<Stream::Peer*>(argument)->status = status;
}

Connections::Connections(const Library& library, const ConnectionOptions& options)
    : library_(library), wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_) throw Error(ErrorKind::transport, std::string("cannot make an eventfd: ") + system_error_text(errno));
  const auto& call = library_.call;
  void* config = nullptr;
  library_.check(call.config_read(nullptr, nullptr, &config), "ucp_config_read");
  const std::shared_ptr<void> config_owner(config, call.config_release);
  // Shared memory reports no lost peer, and the ranks of a host do not use UCX.
  configure(library_, config, "TLS", "^shm");
  // The watch of the hosts notices a lost one. Messages that look for it would wake idle ranks.
  configure(library_, config, "KEEPALIVE_INTERVAL", "inf");
  if (!options.devices.empty()) configure(library_, config, "NET_DEVICES", options.devices.c_str());
  Params params;
  params.mask = Params::kFeatures | Params::kRequestSize | Params::kRequestInit | Params::kSharedByThreads;
  params.features = kFeatureTag | kFeatureWakeup;
  params.request_size = sizeof(Posted);
  params.shared_by_threads = 1;
  params.request_init = &Connections::prepare;
  library_.check(call.init(library_.major, library_.minor, &params, config, &context_), "ucp_init");
  try {
    for (int i = 0; i < options.streams; ++i) {
      auto& stream = *streams_.emplace_back(std::make_unique<Stream>());
      stream.owner = this;
      WorkerParams worker;
      worker.mask = WorkerParams::kThreadMode;
      worker.thread_mode = WorkerParams::kSerialized;
      library_.check(call.worker_create(context_, &worker, &stream.worker), "ucp_worker_create");
      library_.check(call.worker_get_efd(stream.worker, &stream.descriptor), "ucp_worker_get_efd");
      void* address = nullptr;
      std::size_t bytes = 0;
      library_.check(call.worker_get_address(stream.worker, &address, &bytes), "ucp_worker_get_address");
      stream.address.assign(static_cast<const char*>(address), bytes);
      call.worker_release_address(stream.worker, address);
    }
    thread_ = start_thread([this] { run(); });
  } catch (...) {
    for (const auto& stream : streams_) {
      if (stream->worker != nullptr) call.worker_destroy(stream->worker);
    }
    call.cleanup(context_);
    throw;
  }
}

Connections::~Connections() {
  stop_.store(true, std::memory_order_seq_cst);
  idle_.notify();
  wake();
  thread_.join();
  const auto until = Clock::now() + kCloseGrace;
  for (const auto& stream : streams_) close(*stream, until);
  library_.call.cleanup(context_);
}

// Messages that UCX holds back are sent before an endpoint closes, unless a rank is lost, which would not take them.
void Connections::close(Stream& stream, std::chrono::steady_clock::time_point until) {
  const auto& call = library_.call;
  const std::scoped_lock lock(stream.mutex);
  RequestParam param;
  param.mask = RequestParam::kFlags;
  param.flags = lost_.load(std::memory_order_acquire) ? RequestParam::kCloseByForce : 0;
  std::vector<void*> closing;
  for (const auto& [rank, peer] : stream.peers) {
    void* request = call.ep_close(peer.endpoint, &param);
    if (is_request(request)) closing.push_back(request);
  }
  while (!closing.empty() && Clock::now() < until) {
    advance(stream);
    std::erase_if(closing, [&](void* request) {
      if (call.request_check_status(request) == kInProgress) return false;
      call.request_free(request);
      return true;
    });
    pollfd entry{stream.descriptor, POLLIN, 0};
    if (!closing.empty() && call.worker_arm(stream.worker) == kOk) poll(&entry, 1, kCloseLookMs);
  }
  stream.peers.clear();
  advance(stream);
  // UCX warns of messages that nobody has taken, as after a lost rank.
  ReceivedTag about;
  RequestParam nothing;
  nothing.mask = RequestParam::kMemoryType;
  while (Message message = call.tag_probe(stream.worker, 0, 0, 1, &about)) {
    void* request = call.tag_msg_recv(stream.worker, nullptr, 0, message, &nothing);
    if (is_request(request)) call.request_free(request);
  }
  call.worker_destroy(stream.worker);
}

std::string Connections::addresses() const {
  std::string all;
  for (const auto& stream : streams_) {
    const auto length = static_cast<std::uint32_t>(stream->address.size());
    all.append(reinterpret_cast<const char*>(&length), kLengthBytes);
    all += stream->address;
  }
  return all;
}

void Connections::set_addresses(const std::vector<std::string>& by_rank) {
  for (const auto& all : by_rank) {
    auto& streams = addresses_.emplace_back();
    for (std::size_t at = 0; at + kLengthBytes <= all.size();) {
      std::uint32_t length = 0;
      std::memcpy(&length, all.data() + at, kLengthBytes);
      streams.push_back(all.substr(at + kLengthBytes, length));
      at += kLengthBytes + length;
    }
  }
}

// Call with the stream's mutex held.
Endpoint Connections::endpoint(Stream& stream, int to) {
  auto [found, is_new] = stream.peers.try_emplace(to);
  auto& peer = found->second;
  if (is_new) {
    const auto number = static_cast<std::size_t>(std::ranges::find(streams_, &stream, &std::unique_ptr<Stream>::get) -
                                                 streams_.begin());
    EndpointParams params;
    params.mask = EndpointParams::kAddress | EndpointParams::kErrorMode | EndpointParams::kErrorHandler;
    params.address = addresses_[static_cast<std::size_t>(to)].at(number).data();
    params.error_mode = EndpointParams::kErrorModePeer;
    params.error_handler = &Connections::failed;
    params.error_argument = &peer;
    const auto status = library_.call.ep_create(stream.worker, &params, &peer.endpoint);
    if (status != kOk) stream.peers.erase(found);
    library_.check(status, "ucp_ep_create");
  }
  if (peer.status != kOk) {
    throw Error(ErrorKind::transport, "the connection to rank " + std::to_string(to) +
                                          " over UCX is lost: " + library_.call.status_string(peer.status));
  }
  return peer.endpoint;
}

// Call with the stream's mutex held.
Request Connections::post(int stream, int peer, Doorbell& waiter, void* request) {
  if (!is_request(request)) {
    library_.check(status_of(request), "a message to rank " + std::to_string(peer));
    return 0;  // done
  }
  auto* posted = static_cast<Posted*>(request);
  posted->peer = peer;
  posted->stream = streams_[static_cast<std::size_t>(stream)].get();
  posted->waiter = &waiter;
  return reinterpret_cast<Request>(request);
}

Request Connections::send(int stream, const void* data, std::size_t bytes, int to, const Address& address,
                          Doorbell& waiter) {
  RequestParam param;
  param.mask = RequestParam::kCallback | RequestParam::kMemoryType;
  param.callback.sent = [](void* request, Status status, void*) { ended(request, status); };
  auto& by = *streams_[static_cast<std::size_t>(stream)];
  const std::scoped_lock lock(by.mutex);
  return post(stream, to, waiter, library_.call.tag_send(endpoint(by, to), data, bytes, wire_tag(address), &param));
}

Request Connections::receive(int stream, void* data, std::size_t bytes, int peer, const Address& address,
                             Doorbell& waiter) {
  RequestParam param;
  param.mask = RequestParam::kCallback | RequestParam::kMemoryType;
  param.callback.received = [](void* request, Status status, const ReceivedTag*, void*) { ended(request, status); };
  auto& by = *streams_[static_cast<std::size_t>(stream)];
  const std::scoped_lock lock(by.mutex);
  return post(stream, peer, waiter,
              library_.call.tag_recv(by.worker, data, bytes, wire_tag(address), kWholeTag, &param));
}

bool Connections::is_in_flight(Request request) {
  return request != 0 && reinterpret_cast<Posted*>(request)->status.load(std::memory_order_acquire) == kInProgress;
}

bool Connections::test(Request& request) {
  if (request == 0) return true;
  auto* posted = reinterpret_cast<Posted*>(request);
  const auto status = posted->status.load(std::memory_order_acquire);
  if (status == kInProgress) return false;
  request = 0;
  const int peer = posted->peer;
  {
    const std::scoped_lock lock(posted->stream->mutex);
    prepare(posted);
    library_.call.request_free(posted);
  }
  if (status == kOk) return true;
  throw Error(ErrorKind::transport, "a message to or from rank " + std::to_string(peer) +
                                        " over UCX failed: " + library_.call.status_string(status));
}

bool Connections::abandon(Request& request, bool receiving) {
  if (request == 0) return true;
  auto* posted = reinterpret_cast<Posted*>(std::exchange(request, 0));
  const std::scoped_lock lock(posted->stream->mutex);
  if (receiving && posted->status.load(std::memory_order_acquire) == kInProgress) {
    library_.call.request_cancel(posted->stream->worker, posted);
  }
  if (posted->status.load(std::memory_order_acquire) == kInProgress) {
    posted->waiter = nullptr;
    return false;
  }
  prepare(posted);
  library_.call.request_free(posted);
  return true;
}

// Call with the stream's mutex held.
void Connections::advance(Stream& stream) {
  int turns = 0;
  while (turns < kLongestTurn && library_.call.worker_progress(stream.worker) != 0) ++turns;
  // Always, because UCX's own thread may have received messages while it made a connection.
  if (&stream == streams_.front().get()) take_control_messages(stream);
}

void Connections::progress() {
  for (const auto& stream : streams_) {
    const std::unique_lock lock(stream->mutex, std::try_to_lock);
    if (lock) advance(*stream);
  }
}

void Connections::leave() {
  if (polling_.fetch_sub(1, std::memory_order_seq_cst) == 1) idle_.notify();
}

std::shared_ptr<Inbox> Connections::inbox(std::uint64_t group) {
  const std::scoped_lock lock(inboxes_mutex_);
  auto& inbox = inboxes_[group];
  if (!inbox) inbox = std::make_shared<Inbox>();
  return inbox;
}

void Connections::keep(std::unique_ptr<std::string> bytes) {
  const std::scoped_lock lock(inboxes_mutex_);
  kept_.push_back(std::move(bytes));
}

// Call with the first stream's mutex held.
void Connections::take_control_messages(Stream& first) {
  const auto& call = library_.call;
  ReceivedTag about;
  while (Message message = call.tag_probe(first.worker, kControl, kControl, 1, &about)) {
    auto& arriving = arriving_.emplace_back();
    arriving.group = group_of(about.tag);
    arriving.message.from = sender_of(about.tag);
    arriving.message.bytes.resize(about.bytes);
    RequestParam param;
    param.mask = RequestParam::kMemoryType;
    arriving.request = call.tag_msg_recv(first.worker, arriving.message.bytes.data(), about.bytes, message, &param);
  }
  while (!arriving_.empty()) {
    auto& oldest = arriving_.front();
    const bool pends = is_request(oldest.request);
    const auto status = pends ? call.request_check_status(oldest.request) : status_of(oldest.request);
    if (status == kInProgress) return;
    if (pends) {
      prepare(oldest.request);
      call.request_free(oldest.request);
    }
    deliver(oldest, status);
    arriving_.pop_front();
  }
}

void Connections::deliver(Arriving& arrived, Status status) {
  const auto to = inbox(arrived.group);
  const std::scoped_lock lock(to->mutex);
  if (status == kOk) {
    to->messages.push_back(std::move(arrived.message));
  } else {
    to->failure = library_.call.status_string(status);
  }
  to->has_news.store(true, std::memory_order_release);
  if (to->doorbell != nullptr) to->doorbell->notify();
}

void Connections::sleep(Doorbell& waiter, std::uint32_t seen, std::chrono::microseconds limit) {
  if (!arm()) return;
  Doorbell* none = nullptr;
  if (!sleeping_.compare_exchange_strong(none, &waiter, std::memory_order_seq_cst)) {
    leave();
    waiter.wait(seen, Sleeper::caller, limit);
    begin_polling();
    return;
  }
  // A thread that ends a request notifies its waiter before it reads sleeping_.
  if (waiter.notifications() == seen) sleep_on_descriptors(limit);
  sleeping_.store(nullptr, std::memory_order_seq_cst);
}

// Returns true if the descriptors report everything that happens from now on.
bool Connections::arm() {
  return std::ranges::all_of(streams_, [this](const auto& stream) {
    const std::scoped_lock lock(stream->mutex);
    advance(*stream);
    return library_.call.worker_arm(stream->worker) == kOk;
  });
}

// Returns false if nothing has happened for the limit, which is rounded up to milliseconds.
bool Connections::sleep_on_descriptors(std::chrono::microseconds limit) {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  for (const auto& stream : streams_) entries.push_back({stream->descriptor, POLLIN, 0});
  const auto rounded = std::chrono::ceil<std::chrono::milliseconds>(limit).count();
  const bool happened = poll(entries.data(), entries.size(), static_cast<int>(rounded)) != 0;
  std::uint64_t wakes = 0;
  if (entries.front().revents != 0) [[maybe_unused]]
    const auto got = read(wake_.get(), &wakes, sizeof wakes);
  return happened;
}

void Connections::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = write(wake_.get(), &one, sizeof one);
}

void Connections::run() {
  pthread_setname_np(pthread_self(), "perseus-ucx");
  auto look = kFirstLook;
  while (!stop_.load(std::memory_order_seq_cst)) {
    const auto seen = idle_.notifications();
    if (polling_.load(std::memory_order_seq_cst) > 0 && !stop_.load(std::memory_order_seq_cst)) {
      idle_.wait(seen, Sleeper::engine, kLongestLook);
    } else if (arm()) {
      look = sleep_on_descriptors(look) ? kFirstLook : std::min(look * 2, kLongestLook);
    }
  }
}

}  // namespace perseus::ucx
