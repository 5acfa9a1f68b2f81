#include <dlfcn.h>

#include <filesystem>
#include <thread>

#include "base/config.h"
#include "base/environment.h"
#include "base/error.h"
#include "transport/xccl/libraries/library.h"

namespace perseus::xccl {
namespace {

void set_default(const char* name, const std::string& value) {
  if (!environment(name)) set_environment(name, value);
}

void prepare_environment(const Topology& topology, bool has_intel_mpi) {
  set_default("CCL_PLUGIN", "ONECCL_LEGACY_CPU");
  // oneCCL logs every variable that is set, also those set here.
  set_default("CCL_LOG_LEVEL", "error");
  // Each rank has two threads, which spin by default. On a shared core an operation would then take a tenth of a
  // second.
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  if (cores < 2 * topology.local_size()) set_default("CCL_YIELD", "sleep");
  set_default("CCL_ATL_TRANSPORT", has_intel_mpi ? "mpi" : "ofi");
  if (has_intel_mpi) return;
  // Without Intel's launcher, oneCCL does not know which ranks share a host.
  set_default("CCL_PROCESS_LAUNCHER", "none");
  set_default("CCL_LOCAL_RANK", std::to_string(topology.local_rank()));
  set_default("CCL_LOCAL_SIZE", std::to_string(topology.local_size()));
}

// Opens the libraries that libccl.so.1 needs. The wheels have them beside it, where the loader does not search; it
// finds opened libraries by name.
void open_companions(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  for (const char* name : {"libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libsycl.so.9", "libccl.so.2",
                           "libccl.so.1", "libccl_legacy_cpu.so"}) {
    // If one is missing, opening the library fails with a text that names it.
    dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
}

LibrarySpec sought_in(const LibraryPaths& paths) {
  LibrarySpec spec{.title = "oneCCL",
                   .file = "libccl.so.2",
                   .setting = "PERSEUS_ONECCL_LIBRARY",
                   .remedy = "Install it with `pip install 'perseus-like[oneccl]'`",
                   .folders = {}};
  if (!paths.python_prefix.empty()) spec.folders.push_back(paths.python_prefix + "/lib");
  // Intel's setvars.sh sets CCL_ROOT.
  if (const auto root = environment("CCL_ROOT")) spec.folders.push_back(*root + "/lib");
  return spec;
}

}  // namespace

std::shared_ptr<const Library> open_oneccl(const LibraryPaths& paths, const Topology& topology, bool has_intel_mpi) {
  prepare_environment(topology, has_intel_mpi);
  const auto spec = sought_in(paths);
  const auto opened = open_library(spec, paths.given, open_companions);

  auto library = std::make_shared<Library>();
  library->name = spec.title;
  library->prefix = "oneccl";
  library->call = find_functions(opened.handle, library->prefix, opened.path);
  // In its plugin for host memory, send and receive end the process, groups need a GPU, and nothing can be aborted.
  library->traits = {.blocking = true,
                     .point_to_point = false,
                     .adds_16_bits = false,
                     .in_progress = 6,
                     .most_bytes = std::int64_t{1} << 30};
  int version = 0;
  library->check(library->call.get_version(&version), "GetVersion");
  library->version = version_text(version);
  if (library->call.all_to_all == nullptr || version < 20'220'000) {
    throw Error(ErrorKind::unavailable,
                opened.path + " is " + library->title() + "; 2022 or later is needed. " + spec.remedy);
  }
  return library;
}

}  // namespace perseus::xccl
