// Where the shared object of a library is, and how it is opened: at run time, never linked.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace perseus::xccl {

// Where a library may lie beside the places that the loader knows.
struct Places {
  std::string given;          // by the user: only this
  std::string python_prefix;  // sys.prefix: wheels put libraries below it
};

struct Sought {
  std::string title;                 // "NCCL"
  std::string file;                  // "libnccl.so.2"
  std::string setting;               // by which users name the file
  std::string remedy;                // what to install
  std::vector<std::string> folders;  // to look in, in this order
};

struct Opened {
  void* handle = nullptr;  // for the life of the process
  std::string path;
};

// What this process has loaded already, else the first that is there, else what the loader finds. `prepare` is called
// with the path before a file is opened. Throws Error(unavailable).
Opened open_library(const Sought& sought, const std::string& given,
                    const std::function<void(const std::string& path)>& prepare = {});

// The folders below python_prefix/lib that begin with "python", each with `rest` appended.
std::vector<std::string> below_site_packages(const std::string& python_prefix, const std::string& rest);

// "2.32.3" from 23203, as all these libraries number themselves.
std::string version_text(int version);

}  // namespace perseus::xccl
