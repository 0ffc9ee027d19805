# libsparse_ops_cuda.so: the CPU kernels and those for GPUs, with the CUDA runtime linked statically, so that it
# loads where there is no GPU. nvcc is called as it is, on one file at a time: CMake's own CUDA language looks for
# a whole toolkit, of which the packages on PyPI are a part.
set(SPARSE_OPS_CUDA_ARCHITECTURES "80;90" CACHE STRING
    "Compute capabilities to compile for; for the highest there is PTX too, for what comes after it")
find_program(SPARSE_OPS_NVCC nvcc HINTS /usr/local/cuda/bin DOC "The CUDA compiler, 12.0 or newer")
if(NOT SPARSE_OPS_NVCC)
  message(FATAL_ERROR "nvcc was not found: pip install 'sparse-serve[cuda]' brings one (make cuda), or set SPARSE_OPS_NVCC")
endif()
get_filename_component(sparse_ops_nvcc_real ${SPARSE_OPS_NVCC} REALPATH)
get_filename_component(sparse_ops_cuda_root ${sparse_ops_nvcc_real}/../.. ABSOLUTE)
find_library(SPARSE_OPS_CUDART libcudart_static.a
    HINTS ${sparse_ops_cuda_root} /usr/local/cuda PATH_SUFFIXES lib64 lib targets/x86_64-linux/lib targets/sbsa-linux/lib
    DOC "The CUDA runtime")
if(NOT SPARSE_OPS_CUDART)
  message(FATAL_ERROR "libcudart_static.a was not found beside ${SPARSE_OPS_NVCC}: set SPARSE_OPS_CUDART")
endif()

set(sparse_ops_gencode "")
set(sparse_ops_capabilities ${SPARSE_OPS_CUDA_ARCHITECTURES})
list(SORT sparse_ops_capabilities COMPARE NATURAL)
foreach(capability ${sparse_ops_capabilities})
  list(APPEND sparse_ops_gencode -gencode arch=compute_${capability},code=sm_${capability})
endforeach()
list(GET sparse_ops_capabilities -1 sparse_ops_newest)
list(APPEND sparse_ops_gencode -gencode arch=compute_${sparse_ops_newest},code=compute_${sparse_ops_newest})

file(GLOB sparse_ops_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*/*.h)
set(sparse_ops_device_objects "")
foreach(source
    axis_attention/axis_attention_cuda.cu
    axis_mask/axis_mask_cuda.cu
    cuda/exports.cu
    softmax_attention/softmax_attention_cuda.cu
    sparsegen_attention/sparsegen_attention_cuda.cu
    sparsegen_lin/sparsegen_lin_cuda.cu)
  get_filename_component(name ${source} NAME_WE)
  set(object ${CMAKE_CURRENT_BINARY_DIR}/${name}.o)
  # What ptxas says of registers, shared memory and spills is kept beside the object, for the tests to read.
  add_custom_command(
      OUTPUT ${object}
      COMMAND ${CMAKE_COMMAND} -E env ${CMAKE_CURRENT_SOURCE_DIR}/cuda/nvcc.sh ${object}.ptxas ${SPARSE_OPS_NVCC}
          -ccbin ${CMAKE_CXX_COMPILER} -std=c++17 -O3 -lineinfo ${sparse_ops_gencode} -Xptxas=-v
          -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra -Wno-deprecated-gpu-targets
          -I${CMAKE_CURRENT_SOURCE_DIR} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${source} ${sparse_ops_headers} cuda/nvcc.sh
      COMMENT "Building CUDA object ${source}"
      VERBATIM)
  list(APPEND sparse_ops_device_objects ${object})
endforeach()

sparse_ops_add_library(sparse_ops_cuda ${sparse_ops_device_objects})
set_source_files_properties(${sparse_ops_device_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_compile_definitions(sparse_ops_cuda PRIVATE SPARSE_OPS_CUDA)
target_link_libraries(sparse_ops_cuda PRIVATE ${SPARSE_OPS_CUDART} rt ${CMAKE_DL_LIBS})
