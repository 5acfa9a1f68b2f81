# cmake -D PTX=FILE -D TO=FILE.cc -P embed_ptx.cmake: the text as a constant of C++; an empty one where PTX is empty.
set(text "")
if(PTX)
  file(READ "${PTX}" text)
  # nvcc writes the newest version of PTX, which only the newest drivers read; the kernels use nothing newer than 7.0,
  # that of CUDA 11.0.
  string(REGEX REPLACE "\n\\.version [0-9.]+" "\n.version 7.0" text "${text}")
  if(NOT text MATCHES "\n\\.version 7\\.0\n")
    message(FATAL_ERROR "${PTX} names no version of PTX")
  endif()
endif()
set(content "#include \"device/cuda/kernels.h\"\n\nnamespace perseus::cuda {\n\n\
const char* const kPackPtx = R\"PTX(${text})PTX\";\n\n}  // namespace perseus::cuda\n")
# Not written anew where nothing changed: it would be compiled again.
file(CONFIGURE OUTPUT "${TO}" CONTENT "@content@" @ONLY)
