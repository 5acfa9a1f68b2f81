#include "transport/mpi/library/api.h"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <string_view>
#include <type_traits>

#include "base/error.h"
#include "transport/mpi/library/functions.h"

namespace perseus::mpi {

void* Symbols::find(const char* name) const { return dlsym(library_, name); }

void* Symbols::require(const char* name) const {
  if (void* found = find(name)) return found;
  throw Error(ErrorKind::unavailable, std::string("the library has no ") + name + "; MPI 3.0 or later is needed");
}

namespace {

// Returns the text of MPI_Get_library_version.
std::string library_text(const Symbols& symbols) {
  // 8192 is the longest that any family needs.
  std::string text(8192, '\0');
  int length = 0;
  auto* get = reinterpret_cast<int (*)(char*, int*)>(symbols.require("MPI_Get_library_version"));
  if (get(text.data(), &length) != 0) return "unknown";
  text.resize(std::string_view(text.c_str()).size());
  return text;
}

// Returns its first words without build options, such as "MPICH 5.0.2" or "Open MPI v5.0.11".
std::string short_version(std::string text) {
  text.resize(text.find_first_of(",\n\t") == std::string::npos ? text.size() : text.find_first_of(",\n\t"));
  if (const auto label = text.find(" Version:"); label != std::string::npos) {
    const auto number = text.find_first_not_of(' ', label + 9);
    text = text.substr(0, label) + (number == std::string::npos ? "" : " " + text.substr(number));
  }
  return text;
}

// Returns the text after "MPICH Device:".
std::string device_in(const std::string& text) {
  constexpr std::string_view kLabel = "Device:";
  const auto label = text.find(kLabel);
  if (label == std::string::npos) return "";
  const auto begin = std::min(text.find_first_not_of(" \t", label + kLabel.size()), text.size());
  return text.substr(begin, std::min(text.find('\n', begin), text.size()) - begin);
}

template <class Abi>
class ApiOf final : public Api {
 public:
  using Handle = typename Abi::Handle;

  ApiOf(const Symbols& symbols, Family family, const std::string& text)
      : abi_(symbols), mpi_(symbols), family_(family), version_(short_version(text)), device_(device_in(text)) {}

  Family family() const override { return family_; }
  std::string version() override { return version_; }
  std::string device() override { return device_; }

  bool initialized() override {
    int flag = 0;
    check(mpi_.initialized(&flag), "MPI_Initialized");
    return flag != 0;
  }

  bool finalized() override {
    int flag = 0;
    check(mpi_.finalized(&flag), "MPI_Finalized");
    return flag != 0;
  }

  bool initialize(bool for_threads) override {
    int provided = 0;
    const bool ours = !initialized();
    if (ours) {
      const int wanted = for_threads ? Abi::kThreadMultiple : Abi::kThreadSerialized;
      check(mpi_.init_thread(nullptr, nullptr, wanted, &provided), "MPI_Init_thread");
    } else {
      check(mpi_.query_thread(&provided), "MPI_Query_thread");
    }
    one_at_a_time_ = provided < Abi::kThreadMultiple;
    return ours || !one_at_a_time_;
  }

  bool is_multithreaded() const override { return !one_at_a_time_; }

  void finalize() override { check(mpi_.finalize(), "MPI_Finalize"); }

  void abort(int exit_code) override { check(mpi_.abort(abi_.comm_world(), exit_code), "MPI_Abort"); }

  Comm world() override { return wide(abi_.comm_world()); }

  int rank(Comm comm) override {
    int value = 0;
    const auto lock = enter();
    check(mpi_.comm_rank(narrow(comm), &value), "MPI_Comm_rank");
    return value;
  }

  int size(Comm comm) override {
    int value = 0;
    const auto lock = enter();
    check(mpi_.comm_size(narrow(comm), &value), "MPI_Comm_size");
    return value;
  }

  Comm duplicate(Comm comm) override {
    Handle made{};
    const auto lock = enter();
    check(mpi_.comm_dup(narrow(comm), &made), "MPI_Comm_dup");
    check(mpi_.comm_set_errhandler(made, abi_.errors_return()), "MPI_Comm_set_errhandler");
    return wide(made);
  }

  Comm create(Comm parent, std::span<const int> ranks, int tag) override {
    Handle all{}, some{}, made{};
    const auto lock = enter();
    check(mpi_.comm_group(narrow(parent), &all), "MPI_Comm_group");
    check(mpi_.group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &some), "MPI_Group_incl");
    check(mpi_.comm_create_group(narrow(parent), some, tag, &made), "MPI_Comm_create_group");
    check(mpi_.comm_set_errhandler(made, abi_.errors_return()), "MPI_Comm_set_errhandler");
    check(mpi_.group_free(&some), "MPI_Group_free");
    check(mpi_.group_free(&all), "MPI_Group_free");
    return wide(made);
  }

  Comm duplicate_as_stream(Comm comm, int number) override {
    Handle info{}, made{};
    const auto lock = enter();
    check(mpi_.info_create(&info), "MPI_Info_create");
    // Intel MPI reads this key; others ignore it.
    check(mpi_.info_set(info, "thread_id", std::to_string(number).c_str()), "MPI_Info_set");
    check(mpi_.comm_dup_with_info(narrow(comm), info, &made), "MPI_Comm_dup_with_info");
    check(mpi_.info_free(&info), "MPI_Info_free");
    check(mpi_.comm_set_errhandler(made, abi_.errors_return()), "MPI_Comm_set_errhandler");
    return wide(made);
  }

  void free(Comm comm) override {
    Handle handle = narrow(comm);
    const auto lock = enter();
    check(mpi_.comm_free(&handle), "MPI_Comm_free");
  }

  int last_tag() override {
    constexpr int kLastTagOfEveryMpi = 32767;
    const int* value = nullptr;
    int flag = 0;
    const auto lock = enter();
    check(mpi_.comm_get_attr(abi_.comm_world(), Abi::kTagUb, static_cast<void*>(&value), &flag), "MPI_Comm_get_attr");
    return flag == 0 ? kLastTagOfEveryMpi : *value;
  }

  Request send(Comm comm, const void* data, int bytes, int to, int tag) override {
    Handle request{};
    const auto lock = enter();
    check(mpi_.isend(data, bytes, abi_.byte(), to, tag, narrow(comm), &request), "MPI_Isend");
    return wide(request);
  }

  Request send_until_received(Comm comm, const void* data, int bytes, int to, int tag) override {
    Handle request{};
    const auto lock = enter();
    check(mpi_.issend(data, bytes, abi_.byte(), to, tag, narrow(comm), &request), "MPI_Issend");
    return wide(request);
  }

  Request receive(Comm comm, void* data, int bytes, int from, int tag) override {
    Handle request{};
    const auto lock = enter();
    check(mpi_.irecv(data, bytes, abi_.byte(), from, tag, narrow(comm), &request), "MPI_Irecv");
    return wide(request);
  }

  bool test(Request& request) override {
    Handle handle = narrow(request);
    typename Abi::Status status{};
    int done = 0;
    const auto lock = enter();
    const int code = mpi_.test(&handle, &done, &status);
    // Set before the check, because MPI has freed a request that ended with an error.
    request = wide(handle);
    check(code, "MPI_Test");
    return done != 0;
  }

  bool abandon(Request& request, bool receiving) override {
    Handle handle = narrow(request);
    if (handle == abi_.request_null()) return true;
    const auto lock = enter();
    // Errors are ignored, because a request is abandoned only after an error.
    if (receiving) mpi_.cancel(&handle);
    typename Abi::Status status{};
    int done = 0;
    // A cancelled receive completes at one of the next tests.
    constexpr int kLooks = 16;
    for (int i = 0; i < kLooks && done == 0; ++i) {
      if (mpi_.test(&handle, &done, &status) != 0) break;
    }
    request = wide(abi_.request_null());
    if (done != 0) return true;
    if (handle != abi_.request_null()) mpi_.request_free(&handle);
    return false;
  }

  bool probe(Comm comm, Envelope& envelope) override {
    typename Abi::Status status{};
    int there = 0;
    const auto lock = enter();
    check(mpi_.iprobe(Abi::kAnySource, Abi::kAnyTag, narrow(comm), &there, &status), "MPI_Iprobe");
    if (there == 0) return false;
    envelope = {.from = status.source, .tag = status.tag};
    check(mpi_.get_count(&status, abi_.byte(), &envelope.bytes), "MPI_Get_count");
    return true;
  }

 private:
  static Comm wide(Handle handle) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Comm>(handle);
    } else {
      return static_cast<Comm>(static_cast<unsigned>(handle));
    }
  }

  static Handle narrow(Comm comm) {
    if constexpr (std::is_pointer_v<Handle>) {
      return reinterpret_cast<Handle>(comm);
    } else {
      return static_cast<Handle>(static_cast<unsigned>(comm));
    }
  }

  std::unique_lock<std::mutex> enter() {
    return one_at_a_time_ ? std::unique_lock(mutex_) : std::unique_lock<std::mutex>();
  }

  void check(int code, const char* what) const {
    if (code == 0) return;
    std::string text(512, '\0');
    int length = 0;
    if (mpi_.error_string(code, text.data(), &length) != 0) text = "error " + std::to_string(code);
    throw Error(ErrorKind::transport, std::string(what) + " of " + version_ + " failed: " + text.c_str());
  }

  Abi abi_;
  Functions<Abi> mpi_;
  Family family_;
  std::string version_, device_;
  bool one_at_a_time_ = false;  // set before other threads call
  std::mutex mutex_;            // taken around every call when one_at_a_time_
};

}  // namespace

std::string_view name_of(Family family) {
  switch (family) {
    case Family::openmpi: return "Open MPI";
    case Family::mpich: return "MPICH";
    case Family::intel: return "Intel MPI";
    case Family::standard: return "MPI's standard ABI";
  }
  return "?";
}

std::unique_ptr<Api> make_api(void* library, const std::string& path) {
  const Symbols symbols(library);
  const auto text = library_text(symbols);
  const auto name = path.substr(path.find_last_of('/') + 1);
  if (name.starts_with("libmpi_abi.")) {
    return std::make_unique<ApiOf<StandardAbi>>(symbols, Family::standard, text);
  }
  if (symbols.find("ompi_mpi_comm_world") != nullptr) {
    return std::make_unique<ApiOf<OpenMpiAbi>>(symbols, Family::openmpi, text);
  }
  const bool intel = text.find("Intel") != std::string::npos;
  return std::make_unique<ApiOf<MpichAbi>>(symbols, intel ? Family::intel : Family::mpich, text);
}

}  // namespace perseus::mpi
