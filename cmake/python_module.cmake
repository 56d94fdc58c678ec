# byteps/_core: csrc/bindings/ over the core. The preset "release" writes it into the source tree's byteps/, where an
# editable install finds it.
set(BYTEPS_MODULE_DIR ${PROJECT_BINARY_DIR}/byteps CACHE PATH "folder that the native module is written to")
find_package(Python REQUIRED COMPONENTS Interpreter Development.Module)
if(NOT EXISTS "${pybind11_DIR}")  # unknown, or left from a build environment that is gone
  execute_process(COMMAND ${Python_EXECUTABLE} -m pybind11 --cmakedir
                  OUTPUT_VARIABLE pybind11_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
set(PYBIND11_FINDPYTHON ON)
find_package(pybind11 2.13 CONFIG REQUIRED)

file(GLOB binding_sources CONFIGURE_DEPENDS csrc/bindings/*.cc)
if(binding_sources)
  pybind11_add_module(_core MODULE NO_EXTRAS ${binding_sources})
  target_link_libraries(_core PRIVATE byteps_core byteps_scale)
  set_target_properties(_core PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${BYTEPS_MODULE_DIR})
endif()
