#include "base/error.h"
#include "transport/xccl/libraries/library.h"

namespace perseus::xccl {
namespace {

constexpr int kOldestVersion = 21'300;  // the first version with ncclGetLastError
constexpr int kGroupsAborts = 22'200;   // the first version that aborts several communicators in a group
constexpr int kJoinsCalls = 21'800;     // the first version whose abort, on any thread, waits for calls in progress

}  // namespace

std::shared_ptr<const Library> open_nccl(const LibraryPaths& paths) {
  LibrarySpec spec{.title = "NCCL",
                   .file = "libnccl.so.2",
                   .setting = "PERSEUS_NCCL_LIBRARY",
                   .remedy = "Install it with `pip install nvidia-nccl-cu12` (-cu13 where CUDA is 13)",
                   .folders = below_site_packages(paths.python_prefix, "nvidia/nccl/lib")};
  if (!paths.python_prefix.empty()) spec.folders.push_back(paths.python_prefix + "/lib");
  const auto opened = open_library(spec, paths.given);

  auto library = std::make_shared<Library>();
  library->name = spec.title;
  library->prefix = "nccl";
  library->advice =
      "NCCL_DEBUG=WARN prints details. If the driver is older than NCCL's CUDA, install nvidia-nccl-cu12 instead of "
      "-cu13, or a newer driver; PERSEUS_NCCL_LIBRARY selects another NCCL";
  const int version = version_of(opened.handle, library->prefix, opened.path);
  library->version = version_text(version);
  if (version < kOldestVersion) {
    throw Error(ErrorKind::unavailable,
                opened.path + " is " + library->title() + "; 2.13 or later is needed. " + spec.remedy);
  }
  library->call = find_functions(opened.handle, library->prefix, opened.path);
  library->traits.groups_aborts = version >= kGroupsAborts;
  // A library that can revoke communicators ends calls without freeing them. Its calls then need no thread each.
  const auto& call = library->call;
  library->traits.background_calls = version >= kJoinsCalls && call.comm_revoke == nullptr &&
                                     call.comm_init_rank_config != nullptr && call.comm_get_async_error != nullptr;
  return library;
}

}  // namespace perseus::xccl
