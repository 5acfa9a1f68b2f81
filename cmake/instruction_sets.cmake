# Kernel files are compiled once per instruction set and picked at run time; the file's name says which.
#   *_avx2.cc *_avx512.cc *_avx512fp16.cc    x86-64 only
#   *_neon.cc                                aarch64 only
# perseus_instruction_sets(SOURCES DEFINITIONS): takes the files this compiler cannot build out of the list SOURCES, gives
# the others their flags, and sets DEFINITIONS to PERSEUS_HAVE_<SET>=1 for each set that is in the build.
include(CheckCXXSourceCompiles)

# PREFETCHW does nothing on a processor that does not have it.
set(perseus_flags_avx2 -mavx2 -mfma -mf16c -mprfchw)
set(perseus_flags_avx512 -mprfchw -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # GCC bug 105593: its own AVX-512 headers read a value that they set to itself.
  list(APPEND perseus_flags_avx512 -Wno-uninitialized -Wno-maybe-uninitialized)
endif()
set(perseus_flags_avx512fp16 ${perseus_flags_avx512} -mavx512fp16 -mavx512bf16)
set(perseus_flags_neon "")

function(perseus_can_build set result)
  if(set STREQUAL "neon")
    set(macro __aarch64__)
  else()
    set(macro __x86_64__)
  endif()
  string(TOUPPER ${set} upper)
  list(JOIN perseus_flags_${set} " " CMAKE_REQUIRED_FLAGS)
  check_cxx_source_compiles("#ifndef ${macro}\n#error other processor\n#endif\nint main() {}" PERSEUS_CAN_${upper})
  set(${result} ${PERSEUS_CAN_${upper}} PARENT_SCOPE)
endfunction()

function(perseus_instruction_sets sources definitions)
  # The files of a kernel have the same names inside, one for each instruction set.
  set(kernels ${${sources}})
  list(FILTER kernels INCLUDE REGEX "_(scalar|avx2|avx512|avx512fp16|neon)\\.cc$")
  set_source_files_properties(${kernels} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set(kept ${${sources}})
  set(have "")
  foreach(set avx2 avx512 avx512fp16 neon)
    set(files ${kept})
    list(FILTER files INCLUDE REGEX "_${set}\\.cc$")
    if(NOT files)
      continue()
    endif()
    perseus_can_build(${set} can)
    if(can)
      set_source_files_properties(${files} PROPERTIES COMPILE_OPTIONS "${perseus_flags_${set}}")
      string(TOUPPER ${set} upper)
      list(APPEND have PERSEUS_HAVE_${upper}=1)
    else()
      list(REMOVE_ITEM kept ${files})
    endif()
  endforeach()
  set(${sources} ${kept} PARENT_SCOPE)
  set(${definitions} ${have} PARENT_SCOPE)
endfunction()
