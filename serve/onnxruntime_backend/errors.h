// Errors: exceptions within the backend, Triton's errors at its interface.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "onnxruntime_backend/triton_abi.h"
#include "runtime/ort_abi.h"

namespace sparse_serve {

// An error in what a client sent, which the client can correct.
class InvalidArgument : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A request has more bytes of text than the limits allow.
class Oversize : public InvalidArgument {
 public:
  using InvalidArgument::InvalidArgument;
};

// Throws if Triton, or ONNX Runtime, returned an error, and releases that.
void Check(TRITONSERVER_Error* error);
void Check(const OrtApi& api, OrtStatus* status);

// A request was cancelled by its client.
class Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "the request was cancelled by its client"; }
};

// Converts a caught exception to Triton's form, with a message of one line.
TRITONSERVER_Error* ToTriton(const std::exception& error) noexcept;

void Log(TRITONSERVER_LogLevel level, const char* file, int line, const char* message) noexcept;

// Whether `error` is null; otherwise logs it behind `what` and releases it.
bool Succeeds(const char* what, TRITONSERVER_Error* error) noexcept;

// Calls `function`, and returns what it throws as an error of Triton's: no exception may leave a call by
// Triton, or a thread.
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
