// Finds and opens the shared object of a library at run time.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace perseus {

// The places to search for a library besides the loader's paths.
struct LibraryPaths {
  std::string given;          // the path that the user has set, which excludes all others
  std::string python_prefix;  // sys.prefix: wheels put libraries below it
};

// A library to search for.
struct LibrarySpec {
  std::string title;                 // such as "NCCL"
  std::string file;                  // such as "libnccl.so.2"
  std::string setting;               // the environment variable for the path of the file
  std::string remedy;                // what to install
  std::vector<std::string> folders;  // folders to search, in this order
};

struct OpenedLibrary {
  void* handle = nullptr;  // open for the life of the process
  std::string path;
};

// Returns the library `given`, if it is not empty, else the one that this process has loaded already, else the first
// one in the folders, else the one that the loader finds. `prepare` is called with the path before a file is opened.
// Throws Error(unavailable).
OpenedLibrary open_library(const LibrarySpec& spec, const std::string& given,
                           const std::function<void(const std::string& path)>& prepare = {});

// Returns the site-packages of each python folder in python_prefix/lib, with `rest` appended.
std::vector<std::string> below_site_packages(const std::string& python_prefix, const std::string& rest);

// Returns the version as text, such as "2.32.3" for 23203. All these libraries use this numbering.
std::string version_text(int version);

}  // namespace perseus
