#include "transport/mpi/streams.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <system_error>

namespace perseus::mpi {
namespace {

// Bytes of each of the 1,024 buffers that libfabric's tcp provider fills with zeros for each VCI. They are for messages
// without a receive; longer messages get memory of their own. The default, 16 KiB, costs 17 MiB per VCI.
constexpr const char* kReceiveBuffer = "1024";

Streams one(std::string why) { return {.count = 1, .why_one = std::move(why), .variables = {}}; }

// The environment and the variables to add to it.
class Plan {
 public:
  Plan(const LauncherEnvironment& environment, Streams& streams) : environment_(environment), streams_(streams) {}

  std::string value(const char* name) const { return environment_.get(name).value_or(""); }

  void set_unless_given(const char* name, const std::string& value) {
    if (this->value(name).empty()) streams_.variables.emplace_back(name, value);
  }

  // Returns a number that the user has set, or 0.
  int number(const char* name) const {
    const auto text = value(name);
    int number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
  }

 private:
  const LauncherEnvironment& environment_;
  Streams& streams_;
};

Streams plan_mpich(const StreamOptions& options, const LauncherEnvironment& environment) {
  const auto& device = options.device;
  Streams streams{.count = options.count, .why_one = {}, .variables = {}};
  Plan plan(environment, streams);
  const auto netmod = plan.value("MPIR_CVAR_CH4_NETMOD"), provider = plan.value("FI_PROVIDER");
  const int interfaces = plan.number("MPIR_CVAR_CH4_NUM_VCIS");
  const bool asks_for_tcp = netmod == "ofi" && provider == "tcp";
  if (device.find("ch4") == std::string::npos || device.find("ofi") == std::string::npos) {
    return one("this MPICH was built without libfabric (" + device + ")");
  }
  if (!netmod.empty() && netmod != "ofi") return one("MPIR_CVAR_CH4_NETMOD is " + netmod + ", not ofi");
  if (!provider.empty() && provider != "tcp") return one("FI_PROVIDER is " + provider + ", not tcp");
  if (options.fast_network && !asks_for_tcp) return one("the network is faster than TCP");
  if (options.initialized && (!asks_for_tcp || interfaces < 2)) {
    return one(
        "MPI was initialised by this program, without MPIR_CVAR_CH4_NETMOD=ofi, FI_PROVIDER=tcp and "
        "MPIR_CVAR_CH4_NUM_VCIS; call init() first, or start with perseusrun --tcp");
  }
  if (interfaces == 1) return one("MPIR_CVAR_CH4_NUM_VCIS is 1");
  if (interfaces > 1) streams.count = std::min(options.count, interfaces - 1);
  plan.set_unless_given("MPIR_CVAR_CH4_NETMOD", "ofi");
  plan.set_unless_given("FI_PROVIDER", "tcp");
  plan.set_unless_given("MPIR_CVAR_CH4_NUM_VCIS", std::to_string(options.count + 1));
  plan.set_unless_given("FI_TCP_MAX_RX_SIZE", kReceiveBuffer);
  return streams;
}

Streams plan_intel(const StreamOptions& options, const LauncherEnvironment& environment) {
  Streams streams{.count = options.count, .why_one = {}, .variables = {}};
  Plan plan(environment, streams);
  const auto split = plan.value("I_MPI_THREAD_SPLIT");
  const int most = plan.number("I_MPI_THREAD_MAX");
  if (!split.empty() && split != "1") return one("I_MPI_THREAD_SPLIT is " + split + ", not 1");
  if (options.fast_network && split.empty()) return one("the network is faster than TCP");
  if (options.initialized && (split.empty() || most < 2)) {
    return one(
        "MPI was initialised by this program, without I_MPI_THREAD_SPLIT=1, I_MPI_THREAD_RUNTIME=generic and "
        "I_MPI_THREAD_MAX; call init() first, or start with perseusrun --tcp");
  }
  if (most > 0) streams.count = std::min(options.count, most);
  plan.set_unless_given("I_MPI_THREAD_SPLIT", "1");
  plan.set_unless_given("I_MPI_THREAD_RUNTIME", "generic");
  plan.set_unless_given("I_MPI_THREAD_MAX", std::to_string(options.count));
  return streams;
}

}  // namespace

Streams plan_streams(const StreamOptions& options, const LauncherEnvironment& environment) {
  if (options.count <= 1) return {};
  const bool intel = options.version.find("Intel") != std::string::npos;
  auto streams = intel                     ? plan_intel(options, environment)
                 : !options.device.empty() ? plan_mpich(options, environment)
                                           : one(options.version + " has one connection between two processes");
  if (options.initialized) streams.variables.clear();
  return streams;
}

bool has_fast_network() {
  namespace fs = std::filesystem;
  const auto has_devices = [](const char* folder) {
    std::error_code error;
    return fs::directory_iterator(folder, error) != fs::directory_iterator();
  };
  return has_devices("/sys/class/infiniband") || has_devices("/sys/class/cxi");
}

}  // namespace perseus::mpi
