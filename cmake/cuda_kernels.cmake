# perseus_cuda_kernels(SOURCES): adds to the list SOURCES a file that holds the kernels of csrc/device/cuda/pack.cu as PTX,
# or nothing where they are not built. They are text for the driver's compiler: no CUDA is linked, and one text serves every
# device from compute capability 7.5 on.
set(PERSEUS_CUDA_KERNELS auto CACHE STRING "Build the CUDA kernels: auto (where there is an nvcc), on or off")
set_property(CACHE PERSEUS_CUDA_KERNELS PROPERTY STRINGS auto on off)

set(perseus_cuda_folder "${CMAKE_CURRENT_SOURCE_DIR}/csrc/device/cuda")
set(perseus_embed_ptx "${CMAKE_CURRENT_LIST_DIR}/embed_ptx.cmake")

# An nvcc that is there may lack a compiler it gets on with.
function(perseus_find_nvcc result)
  find_program(PERSEUS_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda PATH_SUFFIXES bin)
  set(${result} FALSE PARENT_SCOPE)
  if(NOT PERSEUS_NVCC)
    set(perseus_nvcc_trouble "there is no nvcc" PARENT_SCOPE)
    return()
  endif()
  set(probe "${CMAKE_BINARY_DIR}/nvcc_probe.cu")
  file(WRITE "${probe}" "#include <cstdint>\nextern \"C\" __global__ void probe(std::uint8_t* a) { *a = 1; }\n")
  execute_process(COMMAND "${PERSEUS_NVCC}" -ptx -arch=compute_75 -std=c++17 -o "${probe}.ptx" "${probe}"
    RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE text)
  if(code EQUAL 0)
    set(${result} TRUE PARENT_SCOPE)
  else()
    set(perseus_nvcc_trouble "${PERSEUS_NVCC} does not work: ${text}" PARENT_SCOPE)
  endif()
endfunction()

function(perseus_cuda_kernels sources)
  if(NOT PERSEUS_CUDA_KERNELS MATCHES "^(auto|on|off|ON|OFF)$")
    message(FATAL_ERROR "PERSEUS_CUDA_KERNELS is '${PERSEUS_CUDA_KERNELS}': use auto, on or off")
  endif()
  set(embedded "${CMAKE_BINARY_DIR}/cuda/pack_ptx.cc")
  set(build FALSE)
  if(NOT PERSEUS_CUDA_KERNELS MATCHES "^(off|OFF)$")
    perseus_find_nvcc(build)
    if(NOT build AND PERSEUS_CUDA_KERNELS MATCHES "^(on|ON)$")
      message(FATAL_ERROR "PERSEUS_CUDA_KERNELS is on, but ${perseus_nvcc_trouble}")
    endif()
  endif()
  if(build)
    set(ptx "${CMAKE_BINARY_DIR}/cuda/pack.ptx")
    file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/cuda")
    add_custom_command(OUTPUT "${embedded}"
      COMMAND "${PERSEUS_NVCC}" -ptx -arch=compute_75 -std=c++17 -O3 -I "${CMAKE_CURRENT_SOURCE_DIR}/csrc" -o "${ptx}"
        "${perseus_cuda_folder}/pack.cu"
      COMMAND "${CMAKE_COMMAND}" -D "PTX=${ptx}" -D "TO=${embedded}" -P "${perseus_embed_ptx}"
      DEPENDS "${perseus_cuda_folder}/pack.cu" "${perseus_cuda_folder}/pack_body.h" "${perseus_embed_ptx}"
      COMMENT "CUDA kernels" VERBATIM)
    message(STATUS "CUDA kernels: built with ${PERSEUS_NVCC}")
  else()
    execute_process(COMMAND "${CMAKE_COMMAND}" -D PTX= -D "TO=${embedded}" -P "${perseus_embed_ptx}")
    message(STATUS "CUDA kernels: not built")
  endif()
  set(${sources} ${${sources}} "${embedded}" PARENT_SCOPE)
endfunction()
