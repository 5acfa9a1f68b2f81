# cmake -D PTX=FILE -D TO=FILE.cc -P embed_ptx.cmake: the text as a constant of C++.
file(READ "${PTX}" text)
set(content "#include \"device/cuda/cuda_kernels.h\"\n\nnamespace perseus::cuda {\n\n\
const char* const kPackPtx = R\"PTX(${text})PTX\";\n\n}  // namespace perseus::cuda\n")
# Not written anew where nothing changed: it would be compiled again.
file(CONFIGURE OUTPUT "${TO}" CONTENT "@content@" @ONLY)
