# perseus_cuda_kernels(SOURCES): adds to the list SOURCES a file that holds csrc/device/cuda/pack.ptx, the compiled kernels.
# They are text for the driver's compiler: no CUDA is linked, no compiler for CUDA is needed, and one text serves every device
# from compute capability 7.0 on. csrc/device/cuda/generate_ptx.py makes it.
set(perseus_ptx "${CMAKE_CURRENT_SOURCE_DIR}/csrc/device/cuda/pack.ptx")
set(perseus_embed_ptx "${CMAKE_CURRENT_LIST_DIR}/embed_ptx.cmake")

function(perseus_cuda_kernels sources)
  set(embedded "${CMAKE_BINARY_DIR}/cuda/pack_ptx.cc")
  add_custom_command(OUTPUT "${embedded}"
    COMMAND "${CMAKE_COMMAND}" -D "PTX=${perseus_ptx}" -D "TO=${embedded}" -P "${perseus_embed_ptx}"
    DEPENDS "${perseus_ptx}" "${perseus_embed_ptx}"
    COMMENT "CUDA kernels" VERBATIM)
  set(${sources} ${${sources}} "${embedded}" PARENT_SCOPE)
endfunction()
