// Defines the constants and the layout of MPI_Status for the three ABI families.
#pragma once

#include <cstddef>
#include <cstdint>

namespace perseus::mpi {

// Looks names up in the opened library. find() returns null if the name is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}
  void* find(const char* name) const;
  void* require(const char* name) const;  // throws Error(unavailable)

 private:
  void* library_;
};

// The ABI of MPICH 3.2 to 5, MVAPICH and Intel MPI, fixed by the MPICH ABI initiative (mpich.org/abi).
struct MpichAbi {
  using Handle = int;
  struct Status {
    int count_low, count_high, source, tag, error;
  };
  static constexpr int kAnySource = -2;
  static constexpr int kAnyTag = -1;
  static constexpr int kTagUb = 0x64400001;
  static constexpr int kThreadMultiple = 3;
  static constexpr int kThreadSerialized = 2;

  explicit MpichAbi(const Symbols&) {}
  Handle comm_world() const { return 0x44000000; }
  Handle byte() const { return 0x4c00010d; }
  Handle errors_return() const { return 0x54000001; }
  Handle request_null() const { return 0x2c000000; }
};

// The ABI of Open MPI 3 to 5.
struct OpenMpiAbi {
  using Handle = void*;
  struct Status {
    int source, tag, error, cancelled;
    std::size_t count;
  };
  static constexpr int kAnySource = -1;
  static constexpr int kAnyTag = -1;
  static constexpr int kTagUb = 0;
  static constexpr int kThreadMultiple = 3;
  static constexpr int kThreadSerialized = 2;

  explicit OpenMpiAbi(const Symbols& symbols)
      : comm_world_(symbols.require("ompi_mpi_comm_world")),
        byte_(symbols.require("ompi_mpi_byte")),
        errors_return_(symbols.require("ompi_mpi_errors_return")),
        request_null_(symbols.require("ompi_request_null")) {}
  Handle comm_world() const { return comm_world_; }
  Handle byte() const { return byte_; }
  Handle errors_return() const { return errors_return_; }
  Handle request_null() const { return request_null_; }

 private:
  Handle comm_world_, byte_, errors_return_, request_null_;
};

// The ABI of MPI 5.0, chapter "Application Binary Interface". Handles are small numbers in pointers.
struct StandardAbi {
  using Handle = void*;
  struct Status {
    int source, tag, error, internal[5];
  };
  static constexpr int kAnySource = -1;
  static constexpr int kAnyTag = -2;
  static constexpr int kTagUb = 501;
  static constexpr int kThreadMultiple = 4096;
  static constexpr int kThreadSerialized = 2048;

  explicit StandardAbi(const Symbols&) {}
  Handle comm_world() const { return number(0x101); }
  Handle byte() const { return number(0x247); }
  Handle errors_return() const { return number(0x143); }
  Handle request_null() const { return number(0x180); }

 private:
  static Handle number(std::uintptr_t value) { return reinterpret_cast<Handle>(value); }
};

}  // namespace perseus::mpi
