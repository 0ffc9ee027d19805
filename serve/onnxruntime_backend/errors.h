// What goes wrong: exceptions within the backend, Triton's errors at its border.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "onnxruntime_backend/triton_abi.h"
#include "runtime/ort_abi.h"

namespace sparse_serve {

// What a client sent, and can put right.
class InvalidArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// More bytes of text than are read.
class Oversize : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Throws what Triton, or ONNX Runtime, answered, if that is an error, and releases it.
void Check(TRITONSERVER_Error* error);
void Check(const OrtApi& api, OrtStatus* status);

// What was asked by a client that waits no longer.
class Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "the request was cancelled by its client"; }
};

// Triton's form of an exception, in one line; `error` as it was caught.
TRITONSERVER_Error* ToTriton(const std::exception& error) noexcept;

void Log(TRITONSERVER_LogLevel level, const char* file, int line, const char* message) noexcept;

// Whether nothing went wrong; else logs what did, and releases the error.
bool Succeeds(const char* what, TRITONSERVER_Error* error) noexcept;

// Calls `function`, which may throw, where Triton or a thread calls and nothing may be thrown.
template <class Function>
TRITONSERVER_Error* Guarded(Function function) noexcept {
  try {
    function();
    return nullptr;
  } catch (const std::exception& error) {
    return ToTriton(error);
  }
}

}  // namespace sparse_serve
