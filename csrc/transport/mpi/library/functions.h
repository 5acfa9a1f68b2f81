// Typed pointers to the functions of one opened libmpi.
#pragma once

#include "transport/mpi/library/abi.h"

namespace perseus::mpi {

template <class Abi>
struct Functions {
  using Handle = typename Abi::Handle;
  using Status = typename Abi::Status;

  explicit Functions(const Symbols& symbols);

  int (*error_string)(int, char*, int*);
  int (*initialized)(int*);
  int (*finalized)(int*);
  int (*query_thread)(int*);
  int (*init_thread)(int*, char***, int, int*);
  int (*finalize)();
  int (*abort)(Handle, int);
  int (*comm_rank)(Handle, int*);
  int (*comm_size)(Handle, int*);
  int (*comm_dup)(Handle, Handle*);
  int (*comm_group)(Handle, Handle*);
  int (*comm_create_group)(Handle, Handle, int, Handle*);
  int (*comm_dup_with_info)(Handle, Handle, Handle*);
  int (*comm_free)(Handle*);
  int (*comm_get_attr)(Handle, int, void*, int*);
  int (*comm_set_errhandler)(Handle, Handle);
  int (*group_incl)(Handle, int, const int*, Handle*);
  int (*group_free)(Handle*);
  int (*info_create)(Handle*);
  int (*info_set)(Handle, const char*, const char*);
  int (*info_free)(Handle*);
  int (*isend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*issend)(const void*, int, Handle, int, int, Handle, Handle*);
  int (*irecv)(void*, int, Handle, int, int, Handle, Handle*);
  int (*test)(Handle*, int*, Status*);
  int (*cancel)(Handle*);
  int (*request_free)(Handle*);
  int (*iprobe)(int, int, Handle, int*, Status*);
  int (*get_count)(const Status*, Handle, int*);
};

template <class Abi>
Functions<Abi>::Functions(const Symbols& symbols) {
  const auto get = [&]<class Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(symbols.require(name));
  };
  get(error_string, "MPI_Error_string");
  get(initialized, "MPI_Initialized");
  get(finalized, "MPI_Finalized");
  get(query_thread, "MPI_Query_thread");
  get(init_thread, "MPI_Init_thread");
  get(finalize, "MPI_Finalize");
  get(abort, "MPI_Abort");
  get(comm_rank, "MPI_Comm_rank");
  get(comm_size, "MPI_Comm_size");
  get(comm_dup, "MPI_Comm_dup");
  get(comm_group, "MPI_Comm_group");
  get(comm_create_group, "MPI_Comm_create_group");
  get(comm_dup_with_info, "MPI_Comm_dup_with_info");
  get(comm_free, "MPI_Comm_free");
  get(comm_get_attr, "MPI_Comm_get_attr");
  get(comm_set_errhandler, "MPI_Comm_set_errhandler");
  get(group_incl, "MPI_Group_incl");
  get(group_free, "MPI_Group_free");
  get(info_create, "MPI_Info_create");
  get(info_set, "MPI_Info_set");
  get(info_free, "MPI_Info_free");
  get(isend, "MPI_Isend");
  get(issend, "MPI_Issend");
  get(irecv, "MPI_Irecv");
  get(test, "MPI_Test");
  get(cancel, "MPI_Cancel");
  get(request_free, "MPI_Request_free");
  get(iprobe, "MPI_Iprobe");
  get(get_count, "MPI_Get_count");
}

}  // namespace perseus::mpi
