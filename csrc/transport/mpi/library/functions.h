// Typed pointers to the functions of one opened libmpi.
#pragma once

#include "transport/mpi/library/abi.h"

namespace perseus::mpi {

// X(member, name, parameters)
#define PERSEUS_MPI_FUNCTIONS(X)                                                 \
  X(error_string, "MPI_Error_string", (int, char*, int*))                        \
  X(initialized, "MPI_Initialized", (int*))                                      \
  X(finalized, "MPI_Finalized", (int*))                                          \
  X(query_thread, "MPI_Query_thread", (int*))                                    \
  X(init_thread, "MPI_Init_thread", (int*, char***, int, int*))                  \
  X(finalize, "MPI_Finalize", ())                                                \
  X(abort, "MPI_Abort", (Handle, int))                                           \
  X(comm_rank, "MPI_Comm_rank", (Handle, int*))                                  \
  X(comm_size, "MPI_Comm_size", (Handle, int*))                                  \
  X(comm_dup, "MPI_Comm_dup", (Handle, Handle*))                                 \
  X(comm_group, "MPI_Comm_group", (Handle, Handle*))                             \
  X(comm_create_group, "MPI_Comm_create_group", (Handle, Handle, int, Handle*))  \
  X(comm_dup_with_info, "MPI_Comm_dup_with_info", (Handle, Handle, Handle*))     \
  X(comm_free, "MPI_Comm_free", (Handle*))                                       \
  X(comm_get_attr, "MPI_Comm_get_attr", (Handle, int, void*, int*))              \
  X(comm_set_errhandler, "MPI_Comm_set_errhandler", (Handle, Handle))            \
  X(group_incl, "MPI_Group_incl", (Handle, int, const int*, Handle*))            \
  X(group_free, "MPI_Group_free", (Handle*))                                     \
  X(info_create, "MPI_Info_create", (Handle*))                                   \
  X(info_set, "MPI_Info_set", (Handle, const char*, const char*))                \
  X(info_free, "MPI_Info_free", (Handle*))                                       \
  X(isend, "MPI_Isend", (const void*, int, Handle, int, int, Handle, Handle*))   \
  X(issend, "MPI_Issend", (const void*, int, Handle, int, int, Handle, Handle*)) \
  X(irecv, "MPI_Irecv", (void*, int, Handle, int, int, Handle, Handle*))         \
  X(test, "MPI_Test", (Handle*, int*, Status*))                                  \
  X(cancel, "MPI_Cancel", (Handle*))                                             \
  X(request_free, "MPI_Request_free", (Handle*))                                 \
  X(iprobe, "MPI_Iprobe", (int, int, Handle, int*, Status*))                     \
  X(get_count, "MPI_Get_count", (const Status*, Handle, int*))

template <class Abi>
struct Functions {
  using Handle = typename Abi::Handle;
  using Status = typename Abi::Status;

  explicit Functions(const Symbols& symbols) {
    const auto get = [&]<class Function>(Function*& function, const char* name) {
      function = reinterpret_cast<Function*>(symbols.require(name));
    };
#define PERSEUS_GET(member, name, parameters) get(member, name);
    PERSEUS_MPI_FUNCTIONS(PERSEUS_GET)
#undef PERSEUS_GET
  }

#define PERSEUS_MEMBER(member, name, parameters) int(*member) parameters;
  PERSEUS_MPI_FUNCTIONS(PERSEUS_MEMBER)
#undef PERSEUS_MEMBER
};

}  // namespace perseus::mpi
